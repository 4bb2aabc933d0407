"""Level 2: two friends, some talk, and a trouble that is mended by what somebody said earlier.  Data floor; imports the lists of words.

The rules `tale2@...` need a hero, a friend, an elder, a place and a thing; level 4 tells them again as the adventures of its chapters.
"""
from __future__ import annotations

from .words import lines, words

_REPAIR = ["{=supply} {=borrowed} {=cause@plot.tale} // {=helpless} // {=repair}"]

LEVEL_2 = {
    "title2": ["{hero=name}, {friend=name}, the {^elder=trade} and the {plot=plot2}"],
    "plot2 tale": lines("""
        Locked {^thing=chest} | locked
        Stolen {^thing=trinket} | stolen
        Torn {^thing=torn} | torn
        Broken {^thing=broken} | broken
        Cracked {^thing=cracked} | cracked
        Frightened {^thing=animal} | frightened
        Promised {^thing=wish} | promised
        Stuck {^thing=vehicle} | stuck
        """),
    "tale2": ["{=visit} {=scenery} {=tale2@plot.tale} // {=praise} {=joy2}"],
    "visit": lines("""
        {hero} and {friend} were {=mood} {=friends} who lived near the {place=place}. One {=weather} {=day}, they visited {a mood1=mood}, {mood2=mood} \
            {elder} in {a =look@thing} {=wrap}.
        One {=weather} {=day}, {hero}, {a mood1=mood}, {mood2=mood} {hero.child}, and {friend}, {a mood3=mood}, {mood4=mood} {friend.child}, met \
            {a =mood} {elder} {place=place.where}.
        It was {a =weather} {=day}, and {hero} walked {=manner} to the {place=place} with {friend} to help {a mood1=mood}, {mood2=mood} {elder} with \
            {=number} {=look@thing} {=goods}.
        """),
    "scenery": lines("""
        On the way they had seen {a mood1=mood}, {mood2=mood} {=animal}, {=number} {=seen} {=flock} and {a =look@thing} {=gift}.
        Behind {a =rough} {=barrier} they had seen {a mood1=mood}, {mood2=mood} {=animal} with {=number} {=look@thing} {=goods}.
        """),
    "friends": words("friends, cousins, neighbours, playmates, schoolmates"),
    "praise": lines("""
        When the {elder} heard of it, {elder.he} {=danced} {=so_long}. "What {mood1=mood} and {mood2=mood} children you are," {elder.he} said {=tone}.
        The {elder} made them {a =flavour} {=dish} and {a =flavour} {=dish}. "{=cheer}!" {elder.he} {=cheered}. "Now eat, my {=mood} friends!"
        "{=cheer}!" {=cheered} the {elder} and gave {hero} {a =look@thing} {=gift} and {friend} {a =look@thing} {=gift}.
        """),
    "joy2": lines("""
        That night {hero} dreamed of {=number} {=look@thing} {=flock}, and {friend} dreamed of {a =look@thing} {=shape}.
        Then {hero} and {friend} {=danced} {=so_long} with {a mood1=mood}, {mood2=mood} {=animal} and {=number} {=seen} {=flock}.
        On {=weekday} they told it all to {hero}'s {=mood} {=relative}, who {=danced} {=so_long}.
        """),
    "trouble": words("Oh dear, Oh no, What a pity, How awful, Bad luck, Dear me, Goodness, Help"),

    # the key is where the elder said
    "chest": words("chest, box, trunk, cupboard, desk, drawer, cabinet, safe, closet, suitcase, crate, hut"),
    "tale2@locked": ["{=full} {=ask} // {=shut} // {=unlock}"],
    "full": lines("""
        The {elder} had {a =rough}, {=hue} {thing} full of {=look@thing} {content=content}. "I keep the key {spot1=spot@place.kind}," {elder.he} said \
            {=tone}.
        In the {elder}'s {=room} stood {a =rough}, {=hue} {thing}. "It is full of {=look@thing} {content=content}, and the key is \
            {spot1=spot@place.kind}," {elder.he} said {=tone}.
        """),
    "content": words("""jugs, boots, eggs, candles, books, bells, hats, bottles, potatoes, spoons, ribbons, apples, ropes, maps, coins, shirts, cups,
        pears, buttons, keys"""),
    "room": words("kitchen, cellar, barn, attic, tower, workshop, stable, hall"),
    "ask": lines("""
        When {elder.he} had gone to {=watch} the {=seen} {=flock}, {a mood1=mood}, {mood2=mood} {visitor=trade} came to ask for {count=number} \
            {content}, because {=loss}.
        Then {elder.he} fell asleep on {a =rough} {=seat}. Soon {a =mood} {visitor=trade} in {a =look@thing} {=wrap} asked for {count=number} \
            {content}, because {=loss}.
        """),
    "loss": lines("""
        one {=mood} {=kicker} had stepped on {visitor.his} own
        the {=strong} {=storm} had carried off {visitor.his} own
        {visitor.his} {=mood} {=relative} had sold {visitor.his} own
        """),
    "shut": lines("""
        But the {thing} was locked. {friend} pulled at it {=manner}. "{=trouble}," {friend.he} {=sobbed}. "How can we open it?" // "Remember what the \
            {elder} told us," said {hero} {=tone}. "The key is {spot1}."
        {friend} pulled {=manner} at the {thing}, but it was locked. {^friend.he} looked {spot2=spot@place.kind}, but found only {a =look@thing} \
            {=gift} and {=number} {=look@thing} {=goods}. // "Let us look {spot1}," said {hero} {=tone}. "The {elder} keeps the key there."
        """),
    "unlock": lines("""
        They ran to look, and there was the key, {spot1}, {=look@thing} and {=look@thing}. The {thing} opened, and the {visitor} got {count} {content} \
            and {a =flavour} {=dish}.
        So {friend} {=manner} fetched the key, {hero} turned it {=number} times, and the {visitor} took {count} {content} home in {a =look@thing} \
            {=box}.
        """),

    # a thief hides its loot where the elder said
    "trinket": words("key, coin, ring, button, whistle, bell, spoon, comb, watch, brush, bead, medal, locket, thimble"),
    "tale2@stolen": ["{=warning} {=gone} // {=guess} // {=regain}"],
    "thief trace": lines("""
        magpie | feather
        crow | feather
        raven | feather
        gull | feather
        rat | footprint
        monkey | footprint
        ferret | footprint
        raccoon | footprint
        """),
    "warning": lines("""
        "Beware of the {mood1=mood}, {mood2=mood} {thief=thief}," said the {elder} {=tone}. "It steals what it likes and hides it \
            {spot1=spot@place.kind}."
        The {elder} told them {=tone} about {a =mood} {thief=thief} that stole {=number} {=look@thing} {=goods} and hid them {spot1=spot@place.kind}.
        """),
    "gone": lines("""
        Later {hero} put {hero.his} {=look@thing} {thing} on {a =rough} {=board} and went to {=watch} the {=seen} {=flock}. When {hero.he} came back, \
            it was gone.
        Then the two ate {a =flavour} {=dish} with {a =vessel} of {=drink}, and {hero} put {hero.his} {=look@thing} {thing} on {a =rough} {=board}. \
            Suddenly it was gone.
        """),
    "guess": lines("""
        {friend} looked {=manner} {spot2=spot@place.kind}, but found only {=number} {=look@thing} {=goods}. "{=trouble}," {friend.he} {=sobbed}. "Who \
            took it?" // But {hero} saw {a =look@thing} {thief.trace} on {a =rough} {=seat}. "It was the {thief}," {hero.he} said {=tone}. "It hides \
            things {spot1}."
        "{=trouble}," {=sobbed} {friend}. "Did {a =mood} {=kicker} eat it?" // "No, look at this {=look@thing} {thief.trace}," said {hero} {=tone}. \
            "It was the {thief}. We must look {spot1}."
        """),
    "regain": lines("""
        They looked {spot1}, and there was the {thing}, between {a =look@thing} {=gift} and {=number} {=look@thing} {=goods}. They took it and left \
            {a =flavour} {=dish} for the {thief}.
        So they went {=manner} to look {spot1}. The {=look@thing} nest was full of {=look@thing} {goods1=goods} and {=look@thing} {goods2=goods}, and \
            on top lay the {thing}.
        """),

    # what is needed to mend a thing is where the elder keeps it
    "stuff@torn": words("thread, silk, wool, linen, cotton, leather, yarn, canvas"),
    "stuff@broken": words("glue, rope, wire, string, tar, wood, iron, resin"),
    "stuff@cracked": words("glue, wax, clay, plaster, paste, putty, cement, resin"),
    "tale2@torn": _REPAIR,
    "tale2@broken": _REPAIR,
    "tale2@cracked": _REPAIR,
    "supply": lines("""
        The {elder} was putting {=hue} {stuff=stuff@plot.tale} and {=number} {=look@thing} {=fixing} into {a =look@thing} {box=box} \
            {spot1=spot@place.kind}. "One day you may need it," {elder.he} said {=tone}.
        "If anything goes wrong," said the {elder} {=tone}, "there is {stuff=stuff@plot.tale} in {a =look@thing} {box=box} {spot1=spot@place.kind}."
        """),
    "borrowed": lines("""
        That {=day} they borrowed {a =rough}, {=hue} {thing} from {a mood1=mood}, {mood2=mood} {owner=trade}.
        Now the two had {a =look@thing} {thing} that belonged to {a mood1=mood}, {mood2=mood} {owner=trade}.
        """),
    "helpless": lines("""
        "{=trouble}," {=sobbed} {friend}, and {friend.he} felt {=sad}. "What can we do?" // "We can mend it," said {hero} {=tone}. "There is {stuff} \
            in the {box} {spot1}."
        {friend} felt {=sad}. "{=trouble}," {friend.he} {=sobbed}. "Shall we ask {a mood1=mood}, {mood2=mood} {other=trade}?" // "No," said {hero} \
            {=tone}. "Think of the {box} {spot1}. There is {stuff} in it."
        """),
    "repair": lines("""
        They found the {box}, and {hero} {=manner} mended the {thing} with the {stuff}, while {friend} put {a =hue} {=shape} and {=number} {=hue} \
            stripes on it.
        So {friend} fetched the {stuff} from the {box}, and they worked on {a =rough} {=board} until {=weekday}. Then the {thing} was as good as new, \
            with {a =hue} {=shape} on it.
        """),

    # what an animal loves is what the elder said
    "tale2@frightened": ["{=taste} {=hiding} // {=how} // {=lure}"],
    "taste": lines("""
        "All {thing.many} love {food=food@thing.diet}," said the {elder} {=tone}. "I keep some in {a =look@thing} {box=box} {spot1=spot@place.kind}."
        The {elder} told them {=tone} that {thing.many} love {food=food@thing.diet}, and that {elder.he} kept some in {a =look@thing} {box=box} \
            {spot1=spot@place.kind}.
        """),
    "hiding": lines("""
        Later they saw {a =mood}, {=look@pet} {thing} {spot2=spot@place.kind}. {A =mood} {beast=animal} had frightened it, and it would not come out.
        Then they heard {a =mood}, {=look@pet} {thing} {spot2=spot@place.kind}. It {thing.cried} {=sadly} and hid from the {=strong} {=storm}.
        """),
    "how": lines("""
        "{=trouble}," said {friend} {=tone}. "How can we help it?" // "{^thing.many} love {food}," said {hero} {=tone}. "Let us look in the {box} \
            {spot1}."
        {friend} {=manner} gave it {a =vessel} of {=drink}, but it did not move. // "It wants {food}," said {hero} {=tone}. "Look in the {box} \
            {spot1}."
        """),
    "lure": lines("""
        So {friend} brought some {food} from the {box}, and {hero} put it {=manner} on {a =rough} stone. The {thing} came out, {thing.cried} {=gladly} \
            and {=follow}.
        They took the {food} out of the {box} and called {=manner}. At last the {thing} came out, took {=number} bites and {=follow}.
        """),

    # a thing is promised for another that is lost
    "tool": words("hammer, saw, spade, broom, axe, shovel, kettle, pipe, hat, fork, whistle, pan"),
    "tale2@promised": ["{=promise} {=hunt} // {=luck} // {=reward}"],
    "promise": lines("""
        "I lost my {=look@thing} {tool=tool} in the {storm=storm}," said the {elder} {=tone}. "Bring it back, and I will give you {a =rough}, \
            {=look@thing} {thing}."
        The {elder}'s {=look@thing} {tool=tool} had been lost in the {=strong} {storm=storm}. "I will give {a =look@thing} {thing} to the one who \
            finds it," {elder.he} said {=tone}.
        """),
    "hunt": lines("""
        They looked {=manner} {spot1=spot@place.kind} and {spot2=spot@place.kind}, but found only {=number} {=look@thing} {=goods}.
        {hero} looked {spot1=spot@place.kind} and {friend} looked {spot2=spot@place.kind}, but there was only {a =look@thing} {=gift} and {=number} \
            {=look@thing} {=goods}.
        """),
    "luck": lines("""
        After {=number} {=lengthy} {=period} {friend} stopped to {=watch} the {=seen} {=flock} and saw the {tool} {spot3=spot@place.kind}. "Let us \
            {=use}," {friend.he} said {=tone}. // "No," said {hero} {=tone}. "The {elder} lost it in the {storm}. Remember the {thing}!"
        But on {=weekday} {friend} fell over {a =rough} {=barrier}, and there lay the {tool}. "Shall we {=use}?" {friend.he} said {=tone}. // "No," \
            said {hero} {=tone}. "It belongs to the {elder}, who lost it in the {storm}. Think of the {thing}!"
        """),
    "use": words("keep it, sell it, hide it, wash it, paint it, throw it away"),
    "reward": lines("""
        They {=manner} took the {tool} to the {elder} and got the {thing}, which had {=number} {=hue} stripes and {a =hue} {=shape} on it.
        So they brought the {tool} back in {a =look@thing} {=box}, and the {elder} {=manner} gave them the {thing}.
        """),

    # a beast does what the elder said, if it is asked as the elder said
    "vehicle": words("cart, wagon, coach, carriage, sledge, caravan, plough, trailer"),
    "puller": words("horse, donkey, ox, mule, pony, camel, bull, goat"),
    "trick did": lines("""
        sing to it | sang to it
        scratch its ears | scratched its ears
        bow to it | bowed to it
        tickle its nose | tickled its nose
        tell it a story | told it a story
        give it an apple | gave it an apple
        stamp twice | stamped twice
        dance around it | danced around it
        whistle a tune | whistled a tune
        count to nine | counted to nine
        say good morning | said good morning
        touch its tail | touched its tail
        """),
    "tale2@stuck": ["{=advice} {=ride} // {=push} // {=pull}"],
    "advice": lines("""
        The {elder} lent them {a =look@thing} {thing} and {a =look@pet} {puller=puller}. "It pulls only when you {trick=trick}," {elder.he} said \
            {=tone}.
        "Take my {=look@thing} {thing} and the {=mood} {puller=puller}," said the {elder} {=tone}. "But you must {trick=trick}, or it will not pull."
        """),
    "ride": lines("""
        They had to bring {count=number} {=look@thing} {content=content} to {a mood1=mood}, {mood2=mood} {visitor=trade}, but the {=strong} {=storm} \
            had made the road soft, and a wheel sank in.
        With {count=number} {=look@thing} {content=content} for {a =mood} {visitor=trade} they came to {a =rough} {=barrier}. There a wheel fell into \
            {a =rough} hole.
        """),
    "mightily": words("hard, well, strongly, fast, bravely, eagerly, suddenly, cheerfully"),
    "push": lines("""
        {friend} pushed {=manner}, but the {thing} did not move, and the {puller} stood still. "{=trouble}," {friend.he} {=sobbed}. // "We forgot what \
            the {elder} told us," said {hero} {=tone}. "We must {trick}."
        "{=trouble}," {=sobbed} {friend}. "The {thing} is stuck, and the {puller} will not pull." // "Think of the {elder}," said {hero} {=tone}. "It \
            pulls only when you {trick}."
        """),
    "pull": lines("""
        So they {trick.did}, and the {puller} pulled so {=mightily} that the {thing} came out. The {visitor} got {count} {content} and gave them \
            {a =flavour} {=dish} in {a =look@thing} {=box}.
        Both of them {trick.did}. At once the {puller} pulled the {thing} out, and on {=weekday} the {visitor} had {count} {content} in {visitor.his} \
            {=look@thing} {=room}.
        """),
}
