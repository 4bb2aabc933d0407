"""Level 1: a few sentences; somebody loses, mends, wants, feeds or bakes something, for a reason, at a place.  Data floor; imports the lists of words."""
from __future__ import annotations

from .words import lines, words

_DAMAGED = ["{=owned} {=cause@plot.tale} {=upset} {=mend@plot.tale} {=after}"]
_IN_NEED = ["{=meet} {=need@plot.tale} {=help@plot.tale} {=thanks} {=joy}"]

LEVEL_1 = {
    "title1": ["{hero=name} and the {plot=plot1}"],
    "plot1 tale": lines("""
        Lost {^thing=losable} | lost
        Torn {^thing=torn} | torn
        Broken {^thing=broken} | broken
        Cracked {^thing=cracked} | cracked
        New {^thing=wish} | new
        Hungry {^thing=animal} | hungry
        Cold {^thing=animal} | cold
        Birthday {^thing=dish} | birthday
        """),
    "tale1": ["{=tale1@plot.tale}"],
    "joy": lines("""
        {hero} was so {=glad} that {hero.he} {=danced} {=so_long} with {a mood1=mood}, {mood2=mood} {=animal}.
        "{=cheer}!" said {hero}, and {hero.he} ate {a =flavour} {=dish} with {hero.his} {=mood} {kin3=relative} and {a =mood} {=animal}.
        That night {hero} dreamed of {=number} {=look@thing} {=flock} and {a =look@thing} {=shape}.
        """),

    # something is lost, looked for and found
    "tale1@lost": ["{=taken} {=lost@thing.way} {=search} {=found} {=joy}"],
    "taken": lines("""
        One {=weather} {=day}, {hero} took {hero.his} {=look@thing.sort} {thing} to the {place=place}.
        {hero}, {a =mood} {hero.child}, was {place=place.where} with {hero.his} {=look@thing.sort} {thing}.
        It was {a =weather} {=day}, and {hero} walked {=manner} to the {place=place} with {hero.his} {=look@thing.sort} {thing}.
        """),
    "lost@light": lines("""
        The {=strong} wind blew it over {a =rough} {=barrier}.
        While {hero.he} stopped to {=watch} the {=seen} {=flock}, the {=strong} wind carried it past {a =rough} {=barrier}.
        """),
    "lost@small": lines("""
        There was {a =rough} hole in {hero.his} {=look@thing} {=bag}, and it fell out near {a =rough} {=barrier}.
        While {hero.he} stopped to {=watch} the {=seen} {=flock}, it slipped {=manner} out of {hero.his} {=bag}.
        """),
    "lost@round": lines("""
        It hit {a =rough} stone and rolled past {a =rough} {=barrier}.
        While {hero.he} stopped to {=watch} the {=seen} {=flock}, it rolled down {a =rough} hill.
        """),
    "lost@pet": lines("""
        Suddenly {a =mood} {beast=animal} {beast.cried}, and it ran past {a =rough} {=barrier} in fright.
        While {hero.he} stopped to {=watch} the {=seen} {=flock}, it ran after {a =look@thing} {=bug}.
        """),
    "search": lines("""
        {^hero.he} looked {=manner} {spot1=spot@place.kind} and {spot2=spot@place.kind}, but found only {=number} {=look@thing} {=goods}.
        First {hero.he} asked {a =mood} {=trade} with {=number} {=look@thing} {=goods}, and they looked {spot1=spot@place.kind}, but it was not there.
        {hero} felt {=sad} and looked {=manner} {spot1=spot@place.kind}, but there was only {a =look@thing} {=gift}.
        """),
    "found": lines("""
        At last {hero.he} saw it {spot3=spot@place.kind}, beside {a =look@thing} {=gift} and {=number} {=look@thing} {=goods}.
        Then {a =mood} {=trade} in {a =look@thing} {=wrap} found it {spot3=spot@place.kind}.
        In the end {hero.his} {=mood} {kin=relative} found it {spot3=spot@place.kind} and brought it back {=manner}.
        """),

    # something is damaged and mended
    "tale1@torn": _DAMAGED,
    "tale1@broken": _DAMAGED,
    "tale1@cracked": _DAMAGED,
    "owned": lines("""
        {hero} had {a =look@thing} {thing} that {hero.his} {=mood} {kin=relative} had {=made} for {hero.him}.
        Of all {hero.his} things, {hero}, {a mood1=mood}, {mood2=mood} {hero.child}, loved the {=look@thing} {thing} best.
        One {=weather} {=day}, {hero} cleaned the {=look@thing} {thing} that belonged to {hero.his} {=mood} {kin=relative}.
        """),
    "lengthy": words("long, cold, dark, quiet, lonely, hard, busy, grey"),
    "made": words("made, bought, found, chosen, kept, painted"),
    "cause@torn": lines("""
        It caught on {a =rough} {=sharp} {place=place.where} and tore {=down}.
        Then {a =mood} {=kicker} stepped on it {place=place.where} and made {a =rough} hole in it.
        While {hero} stopped to {=watch} the {=seen} {=flock}, the {=strong} wind tore it {=down}.
        """),
    "down": words("down the middle, at the edge, from end to end, in two, in three, from top to bottom"),
    "cause@broken": lines("""
        Then {a =mood} {=kicker} kicked it {place=place.where}, and it broke into {=number} pieces.
        {hero}'s {=mood} {kin2=relative} fell over it {place=place.where}, and it broke into {=number} pieces.
        In the {=storm}, {a =rough} {=faller} fell on it, and it broke into {=number} pieces.
        """),
    "faller": words("branch, tree, brick, chimney, ladder, rock, gate, wall"),
    "cause@cracked": lines("""
        It slipped from {hero}'s {=slippery} hands and hit {a =rough} {=board}, and it cracked.
        Then {a =mood} {=jumper} jumped onto the {=board} and knocked it down, and it cracked.
        {hero}'s {=mood} {kin2=relative} dropped it on {a =rough} {=board}, and it cracked.
        """),
    "slippery": words("wet, cold, oily, soapy, tired, sticky, little, warm"),
    "upset": lines("""
        {^hero.he} felt {=sad} and showed it {=manner} to {a =mood} {=trade} in {a =look@thing} {=wrap}.
        But {hero.his} {=mood} {helper=relative} put on {a =look@thing} {=wrap} and came {=manner} to help.
        """),
    "mend@torn": lines("""
        Together they patched it with {=number} {=hue} pieces of {=fabric}.
        They sat down on {a =rough}, {=hue} {=seat} and sewed it up with {=hue} {=fabric}.
        """),
    "mend@broken": lines("""
        Together they mended it with {=number} {=look@thing} {=fixing} and some {=glue}.
        They worked until {=weekday} and put it together with {=number} {=look@thing} {=fixing}.
        """),
    "mend@cracked": lines("""
        Together they filled the crack with {=hue} {=glue} and let it dry for {=number} {=lengthy} {=period}.
        They sat down on {a =rough}, {=hue} {=seat} and closed the crack with {=hue} {=glue}.
        """),
    "after": lines("""
        Last of all they put {a =hue} {=shape} and {=number} {=hue} stripes on it, and {hero} {=danced} {=so_long}.
        Soon it was as good as new, and {hero} {=danced} {=so_long} with {a =mood} {=animal}.
        To say thank you, {hero.he} made {a =flavour} {=dish} and {=number} {=flavour} {=cookies} on {=weekday}.
        """),
    "cookies": words("rolls, biscuits, muffins, pancakes, waffles, tarts"),

    # something is wished for and earned
    "tale1@new": ["{=wishing} {=price} {=work} {=bought} {=joy}"],
    "wishing": lines("""
        One {=weather} {=day}, {hero} saw {a =look@thing} {thing} in {a =mood} {=trade}'s window.
        {hero} was {a =mood} {hero.child} who wanted {a =look@thing} {thing} more than anything.
        For {=number} {=lengthy} {=period}, {hero} had wished for {a =look@thing} {thing}.
        """),
    "price": lines("""
        It cost {price=much} coins, but {hero.he} had only {=number} and {a =look@thing} {=gift}.
        Its {mood1=mood}, {mood2=mood} owner asked {price=much} coins for it, but {hero.his} {=look@thing} {=bag} was empty.
        """),
    "work": lines("""
        So {hero.he} {=did} {=number} {=goods} for {a =mood} {=trade} and {=did} {=number} {=goods} for {hero.his} {=mood} {kin=relative}.
        Every {=day} {hero.he} {=did} {=number} {=look@thing} {=goods} for {a =mood} {=trade}.
        """),
    "bought": lines("""
        After {=number} {=lengthy} {=period} {hero.he} had {price} coins and bought the {thing} from {a =mood} {=trade}.
        At last {hero.he} {=manner} put {price} coins on {a =rough} {=board} and took the {thing} home.
        """),

    # an animal in need is helped
    "tale1@hungry": _IN_NEED,
    "tale1@cold": _IN_NEED,
    "meet": lines("""
        One {=weather} {=day}, {hero} found {a =look@pet} {thing} {place=place.where}.
        On the way to the {place=place}, {hero} saw {a =look@pet} {thing} {spot1=spot@place.kind}.
        {hero} was {place=place.where} when {a =look@pet} {thing} came out from behind {a =rough} {=barrier}.
        """),
    "need@hungry": lines("""
        It had lost its way in the {=strong} {=storm} and had to eat {=look@thing} {=crumbs} for {=number} {=lengthy} days.
        The {=strong} {=storm} had taken its last {=number} {=crumbs}, and now it was thin and {=sad}.
        It {thing.cried} {=sadly}, because it had eaten nothing but {=number} {=look@thing} {=crumbs} since {=weekday}.
        """),
    "need@cold": lines("""
        It had lost its way in the {=strong} {=storm} and slept on {a =rough} {=faller} for {=number} {=lengthy} days.
        The {=strong} {=storm} had blown its {=look@thing} home away, and now it was wet and {=sad}.
        It had fallen into {a =rough} {=water}, and it {thing.cried} {=sadly}.
        """),
    "crumbs": words("leaves, berries, seeds, roots, flowers, apples, mushrooms, nuts"),
    "water": words("stream, pond, ditch, well, lake, bucket, river, barrel"),
    "help@hungry": lines("""
        {hero} {=manner} gave it {a =vessel} of {=drink} and some {food=food@thing.diet} from {hero.his} {=look@thing} {=bag}.
        {^hero.he} ran to {a =mood} {=trade} and came back with some {food=food@thing.diet} in {a =look@thing} {=box}.
        """),
    "help@cold": lines("""
        {hero} wrapped it in {hero.his} {=look@thing} {=wrap} and carried it {=manner} to {a =mood} {=trade}.
        {^hero.he} made it a bed of {=straw} in {a =look@thing} {=box} and gave it {a =vessel} of warm {=drink}.
        """),
    "straw": words("straw, hay, wool, moss, leaves, feathers"),
    "thanks": lines("""
        The {thing} {thing.cried} {=gladly} and {=follow}.
        The next {=day}, it came back {=manner} and brought {hero.him} {a =look@thing} {=gift}.
        From then on, it waited for {hero.him} {spot2=spot@place.kind} every {=day}.
        """),
    "follow": lines("""
        followed {hero} home
        slept at {hero}'s door
        sat down beside {hero}
        stayed all summer
        closed its eyes
        ate from {hero}'s hand
        looked up at {hero}
        was not afraid any more
        """),

    # something is baked for somebody
    "tale1@birthday": ["{=plan} {=missing} {=barter} {=feast} {=joy}"],
    "plan": lines("""
        {hero} wanted to make {a =flavour} {thing} for {hero.his} {=mood} {kin=relative}, whose birthday was on {=weekday}.
        On {=weekday}, {hero.his} {=mood} {kin=relative} asked {hero} for {a =flavour} {thing} with {=number} {=hue} candles.
        """),
    "missing": lines("""
        Alas, {a =mood} {=jumper} and {a =mood} {=kicker} had eaten all the {ingredient=ingredient}.
        But the {ingredient=ingredient} had got wet in {a =look@thing} {=box} {place=place.where}.
        """),
    "barter": lines("""
        Then {hero.he} {=did} {=number} {=goods} for {a =mood} {=trade} and got {a =vessel} of {ingredient}.
        So {hero.he} gave {a =mood} {=trade} {a =look@thing} {=gift} for {a =vessel} of {ingredient}.
        """),
    "feast": lines("""
        The {kin} {=gladly} ate {=number} pieces and said it was the {=best} {thing} in the world.
        Everyone came to taste the {thing}, and the {kin} gave {hero.him} {a =look@thing} {=gift}.
        """),
    "best": words("best, finest, sweetest, biggest, funniest, warmest"),
}
