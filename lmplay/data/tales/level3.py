"""Level 3: a journey: three things are packed, each is needed on the way, and all is told again at the end.  Data floor; imports the lists of words.

The rules `way@...` need a hero and a friend; level 4 tells them again between its chapters' adventures.
"""
from __future__ import annotations

from .words import lines, words

LEVEL_3 = {
    "title3": ["{hero=name}, {friend=name} and the {^metal=metal} {^treasure=treasure}"],
    "metal": words("silver, golden, iron, crystal, copper, glass, ivory, amber, pearl, bronze, brass, steel, marble, oaken"),
    "treasure": words("bell, crown, key, lamp, horn, harp, mirror, cup, ring, feather, flute, star"),
    "tale3": ["""{=home} {=worry} // {=counsel} {=packing} // {=start} {=onward} {turn1=turn}{trip1<item} // {=rest} {=onward}
        {turn2=turn}{trip2<item} // {=rest} {=onward} {turn3=turn}{trip3<item} // {=goal} // {=return} // {=welcome} {=ending}"""],
    "turn": lines("""
        {item<item1}{=way@item.way}
        {item<item2}{=way@item.way}
        {item<item3}{=way@item.way}
        """),

    # why they go, and with what
    "village": words("""Oakford, Millbrook, Westhill, Ashdale, Greenport, Stonebridge, Foxley, Larkfield, Maplewood, Highgate, Redcliff, Newhaven,
        Summerfield, Longmeadow, Silverlake, Blackwater"""),
    "sage he him his": [
        *[f"{name} | she | her | her" for name in words("Agatha, Bertha, Edna, Gerda, Martha, Olga, Ursula, Winifred")],
        *[f"{name} | he | him | his" for name in words("Albert, Conrad, Gustav, Harold, Magnus, Oswald, Rufus, Wilfred")],
    ],
    "home": lines("""
        In the village of {village=village} lived {a =mood} {hero.child} called {hero} and {a =mood} {friend.child} called {friend}. {hero} wore \
            {a =look@thing} {=wrap}, and {friend} wore {a =look@thing} {=wrap}.
        {hero} and {friend} were {=mood} {=friends} in the village of {village=village}. {hero} had {=number} {=look@thing} {=goods}, and {friend} had \
            {a =mood} {=animal}.
        """),
    "need now fix": lines("""
        the well had run dry | the well has run dry | fresh water rose in the well
        the clock had stopped | the clock has stopped | the clock began to tick
        the apple trees would not bloom | the apple trees will not bloom | the apple trees began to bloom
        the lighthouse had gone dark | the lighthouse has gone dark | the lighthouse shone over the sea
        the bees had flown away | the bees have flown away | the bees came humming back
        the windmill would not turn | the windmill will not turn | the windmill began to turn
        the bread would not rise | the bread will not rise | the bread rose high in the ovens
        the fog would not lift | the fog will not lift | the fog lifted and the sun came out
        nobody could sleep | nobody can sleep | everybody fell asleep and snored
        no bird would sing | no bird will sing | a thousand birds began to sing
        the river had turned black | the river has turned black | the river ran clear again
        the snow would not melt | the snow will not melt | the snow melted and flowers came up
        the hens would not lay | the hens will not lay | the hens laid a hundred eggs
        the children had forgotten how to laugh | the children have forgotten how to laugh | the children laughed till they cried
        """),
    "season": words("spring, summer, autumn, winter, year, month, week"),
    "worry": lines("""
        But that {=season} {need=need}. {A =mood} {=trade} tried to help with {=number} {=look@thing} {=goods}, but it was no use.
        Then, one {=weather} {=day}, {need=need}. The people asked {a =mood} {=trade} and {a =mood} {=trade}, but neither knew what to do.
        """),
    "far": words("""Tower of Winds, Cave of Echoes, Castle of Glass, Garden of Frost, Valley of Clouds, House of Clocks, Island of Mist, Hall of
        Mirrors, Well of Stars, Forest of Whispers, Palace of Shadows, Mountain of Fire"""),
    "guard": words("giant, dragon, witch, wizard, troll, queen, king, lion, griffin, knight, ogre, fairy"),
    "counsel": lines("""
        "Only the {metal} {treasure} can help us," said old {sage=sage} {=tone}. "It lies in the {far=far}, where {a =mood} {guard=guard} guards it."
        Old {sage=sage} had {a =rough} book. "We need the {metal} {treasure} from the {far=far}," {sage.he} said {=tone}. "But {a =mood} {guard=guard} \
            keeps it."
        """),
    "sturdy": words("good, old, fine, big, little, new, clean, plain, neat, heavy"),
    "packing": lines("""
        "We will go," said {hero} {=tone}. // "Then take {a =sturdy} {item1=item}, {a =sturdy} {item2=item} and {a =sturdy} {item3=item}," said \
            {sage}, "for the way is {=weary} and {=lengthy}."
        {^sage.he} gave {hero} {a =sturdy} {item1=item} and {a =sturdy} {item2=item}, and {friend} {a =sturdy} {item3=item}. "The way is {=weary} and \
            {=lengthy}," {sage.he} said {=tone}.
        """),
    "weary": words("steep, dangerous, endless, rough, stony, winding, icy, muddy"),
    "start": lines("""
        On {=weekday} they said goodbye to {hero.his} {=mood} {=relative} and set out {=manner}.
        They left on {a =weather} {=day}, with {=number} {=flavour} {=cookies} in {a =look@thing} {=bag}.
        """),
    "onward": lines("""
        After {=number} {=lengthy} hours they came to
        Beyond {a =rough} {=barrier} they came to
        By {=weekday} {=day_time} they came to
        """),
    "day_time": words("morning, noon, afternoon, evening"),
    "rest": lines("""
        That night they slept near {a =rough} {=barrier} and dreamed of {=look@thing} {=flock} and {=look@thing} {=flock}.
        In the evening they ate {a =flavour} {=dish} with {a =mood} {=trade}, who {=danced} {=so_long}.
        They sat down on {a =rough} stone and shared {=number} {=flavour} {=cookies} with {a =mood} {=animal}.
        """),

    # what each thing is good for
    "item way past told": lines("""
        rope | ravine | the ravine | crossed a ravine on the rope
        lantern | tunnel | the tunnel | found the way through a tunnel with the lantern
        loaf | goat | the bridge of the goat | won the heart of a goat with the loaf
        whistle | fog | the foggy moor | found each other in the fog with the whistle
        mirror | ice | the gate of ice | melted a gate of ice with the mirror
        blanket | snow | the snowy pass | slept in the snow under the blanket
        net | lake | the lake | caught an oar with the net
        spade | sand | the buried road | dug out a buried road with the spade
        drum | wolves | the forest of wolves | driven away the wolves with the drum
        umbrella | nuts | the street of squirrels | walked through a rain of nuts under the umbrella
        ladder | wall | the high wall | climbed a high wall with the ladder
        honeycomb | bear | the cave of the bear | made friends with a bear with the honeycomb
        needle | sail | the broad river | sewed up a torn sail with the needle
        """),
    "glow": words("golden, yellow, red, warm, pale, weak, bright, orange, steady, trembling"),
    "part": words("nose, left foot, right foot, left hand, right hand, chin, left ear, right ear, elbow, knee"),
    "way@ravine": ["""a ravine so deep that {friend} felt {=sad}. The {=strong} {=storm} had torn the bridge away, and far below they saw {a =rough}
        stream and {=number} {=look@thing} stones. "{=trouble}," {=sobbed} {friend}. "We cannot jump so far." // "But we have the rope," said {hero}
        {=tone}. {^hero.he} threw it over {a =rough} rock, tied it to {a =rough} tree and climbed across {=manner}. Then {friend} came after
        {hero.him}, and {a =mood} {=animal} watched them."""],
    "way@tunnel": ["""a tunnel so dark that {friend} could not see {friend.his} own {=part}. Somewhere {a =mood} {beast=animal} {beast.cried}
        {=sadly}. "{=trouble}," {=sobbed} {friend}. "I will not go in there." // "But we have the lantern," said {hero} {=tone}. In its {=glow} light
        they saw {=number} {=mood} bats and {a =look@thing} {=gift}. They went on {=manner} for {=number} hours, until they came out beside {a =rough}
        {=barrier}."""],
    "way@goat": ["""a bridge where {a =mood}, {=look@pet} goat let nobody pass. It was cross because {a =mood} {=trade} had sold its {=look@thing}
        house. It stamped {=number} times and pushed {friend} with its horns. "{=trouble}," {=sobbed} {friend}. "My poor {=part}!" // "But we have the
        loaf," said {hero} {=tone}. The goat ate it {=gladly}, down to the last crumb. Then it gave them {a =look@thing} {=gift} and went {=manner}
        out of the way."""],
    "way@fog": ["""a moor where the fog was as thick as {=flavour} soup. {friend} stopped to listen to {a =mood} {=animal}, and when {friend.he}
        looked up, {hero} was gone. "{=trouble}," {=sobbed} {friend} and hit {friend.his} {=part} on {a =rough} stone. // But {hero} had the whistle.
        {^hero.he} blew it {=number} times, and {friend} walked {=manner} toward the sound. "{=cheer}!" {=cheered} {hero}, and they held hands until
        they came to {a =rough} {=barrier}."""],
    "way@ice": ["""a gate that was frozen shut. The ice was {=hue} and as hard as {a =sturdy} brick. {friend} kicked it {=number} times and hurt
        {friend.his} {=part}. "{=trouble}," {=sobbed} {friend}. "It will not melt till summer." // "But we have the mirror," said {hero} {=tone}.
        {^hero.he} {=manner} caught the sun in it and sent {a =glow} light to the ice. After {=number} hours there was only {a =rough} puddle, and out
        of it {a =mood} {=animal} was drinking."""],
    "way@snow": ["""a mountain pass full of snow. The wind was so cold that {friend.his} {=part} turned {=hue}, and soon it was too dark to go on.
        "{=trouble}," {=sobbed} {friend}. "We shall freeze like {=number} {=look@thing} icicles." // "But we have the blanket," said {hero} {=tone}.
        They wrapped it around them behind {a =rough} rock, and {a =mood} {=animal} came to lie at their feet. Until {=day_time} they told stories of
        {=look@thing} {=flock} and {a =mood} {=trade}."""],
    "way@lake": ["""a lake and found {a =rough}, {=hue} boat. They rowed {=manner}, but halfway {friend} wanted to {=watch} the {=seen} {=flock}, and
        the oar fell into the water. "{=trouble}," {=sobbed} {friend}. "Now we shall drift for {=number} {=period}." // "But we have the net," said
        {hero} {=tone}. {^hero.he} threw it {=number} times. It brought up {a =look@thing} {=gift}, then {a =look@thing} {=gift}, and at last the oar."""],
    "way@sand": ["""a place where the road was gone. In the {=strong} {=storm} a hill had slid down and buried it under sand and {=look@thing} stones.
        {friend} walked over it {=manner} and sank in up to {friend.his} {=part}. "{=trouble}," {=sobbed} {friend}. // "But we have the spade," said
        {hero} {=tone}. They dug for {=number} hours. Under the sand they found {a =look@thing} {=gift}, {=number} {=look@thing} {=goods} and
        {a =mood} {=animal}, and at last the road."""],
    "way@wolves": ["""a forest full of wolves. There were {=number} {=look@pet} ones and {=number} {=look@pet} ones, and they howled because they had
        eaten nothing since {=weekday}. "{=trouble}," {=sobbed} {friend}. "They are looking at my {=part}." // "But we have the drum," said {hero}
        {=tone}. {^hero.he} beat it {=number} times, and {friend} sang of {a =mood} {=trade} and {a =mood} {=animal}. The wolves were so amazed that
        they ran away over {a =rough} {=barrier}."""],
    "way@nuts": ["""a street where {=number} {=mood} squirrels lived. They were cross because {a =mood} {=trade} had cut down their tree, and they
        threw nuts at everyone. One nut hit {friend} on the {=part}. "{=trouble}," {=sobbed} {friend}. // "But we have the umbrella," said {hero}
        {=tone}. They held it up and walked on {=manner}, while nuts and {=look@thing} {=crumbs} fell like rain. Behind {a =rough} {=barrier} they ate
        {=number} nuts and gave one to {a =mood} {=animal}."""],
    "way@wall": ["""a wall as high as {=number} houses. It had no door, because {a =mood} king had built it against {=look@thing} {=flock}. {A =mood}
        {beast=animal} sat on top and {beast.cried} {=gladly}. "{=trouble}," {=sobbed} {friend}. "We cannot fly." // "But we have the ladder," said
        {hero} {=tone}. They climbed up {=manner} and saw {a =rough} valley with {=number} {=look@thing} {=flock} in it. Then they slid down, and
        {friend} landed on {friend.his} {=part}."""],
    "way@bear": ["""a cave where {a =mood}, {=look@pet} bear lived. It growled because {=number} bees had stung it on the {=part}, and it would let
        nobody pass. "{=trouble}," {=sobbed} {friend}. "Perhaps it eats {=friends}." // "But we have the honeycomb," said {hero} {=tone}. The bear ate
        it {=gladly} and licked its paws. Then it showed them {a =rough} path behind the cave and gave them {a =look@thing} {=gift}."""],
    "way@sail": ["""a river as broad as a sea. {A =mood} ferryman sat on {a =rough} {=seat} beside his {=look@thing} boat, for the {=strong} {=storm}
        had torn the {=hue} sail {=down}. "{=trouble}," {=sobbed} {friend}. "We cannot swim so far." // "But we have the needle," said {hero} {=tone}.
        They pulled {=hue} wool from {friend.his} {=wrap} and sewed for {=number} hours. Then the ferryman took them across {=manner} and sang of
        {a =mood} {=animal}."""],

    # there and back again
    "goal": lines("""
        At last they saw the {far}. {A =rough} gate opened, and there stood the {guard} in {a =look@thing} {=wrap}. "Who sent you, and why?" asked the \
            {guard} {=tone}. // "Old {sage} of {village} sent us," said {hero} {=tone}, "because {need.now}." // "And how did you come so far?" // "We \
            have {trip1.told}, we have {trip2.told}, and we have {trip3.told}," said {friend} {=tone}. // "Then you are {mood1=mood} and \
            {mood2=mood}," said the {guard}, "and the {metal} {treasure} is yours." It lay {=look@thing} and shining on {a =rough} {=board}.
        On {=weekday} they reached the {far} and knocked {=number} times. The {guard} was {=mood} and {=mood}, and held the {metal} {treasure} in one \
            hand. // "Tell me your story, and you shall have it," said the {guard} {=tone}. // "We come from {village}," said {friend} {=tone}. "We \
            have {trip1.told}, we have {trip2.told}, and we have {trip3.told}, because {need.now}." // The {guard} {=danced} {=so_long} and gave \
            {hero} the {metal} {treasure} in {a =look@thing} {=box}.
        """),
    "return": lines("""
        They went home the way they had come. They passed {trip3.past}, then {trip2.past}, then {trip1.past}, and on {=weekday} they saw the {=hue} \
            roofs of {village}.
        The way back was {=weary} and {=lengthy}. First came {trip3.past}, next came {trip2.past}, last came {trip1.past}, and there {hero.his} \
            {=mood} {=relative} was waiting for them.
        """),
    "welcome": lines("""
        "{=cheer}!" {=cheered} old {sage} and put the {metal} {treasure} on {a =rough} {=board}. At once {need.fix}.
        {hero} gave old {sage} the {metal} {treasure}, {sage.he} {=manner} put it on {a =rough}, {=hue} {=board}, and {need.fix}.
        """),
    "ending": lines("""
        Everyone in {village} {=danced} {=so_long}. There was {a =flavour} {=dish} for {hero} and {a =flavour} {=dish} for {friend}, and {a =mood} \
            {=animal} had the crumbs.
        The people made {hero} {a =look@thing} {=wrap} and {friend} {a =look@thing} {=wrap}, and every {=season} they tell the story of the {metal} \
            {treasure}.
        """),
}
