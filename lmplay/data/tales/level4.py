"""Level 4: a book in chapters, longer than any usual context; a cast that stays, things that are gathered, and all told again at the end.
Data floor; imports the lists of words.

Each chapter is a way of level 3, passed with what the chapter before gave, and then an adventure of level 2.
"""
from __future__ import annotations

from .words import lines, words

_NUMBERS = words("one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen")
_SIZES = range(9, 13)  # how many things a book gathers, each in a chapter of its own


def _list(size: int) -> str:
    """Tell which thing is needed from which place; both are facts from here on."""
    return " ".join(f"From the {{=remote}} {{place{i}=place}} we need {{a metal{i}=metal}} {{gear{i}=gear}}." for i in range(1, size + 1))


def _chapters(size: int) -> str:
    """Tell the chapters of the journey: the facts of each are kept under its number, for the end and so that nobody comes twice."""
    chapters = []
    for i in range(1, size + 1):
        plan = "Tomorrow we can go home to {village}."
        if i < size:
            plan = f"Tomorrow we must go to the {{place{i + 1}}} for the {{metal{i + 1}}} {{gear{i + 1}}}."
        chapters.append(
            f"{{place<place{i}}}{{metal<metal{i}}}{{gear<gear{i}}}Chapter {_NUMBERS[i].title()}: The {{plot=plot2}} // {{=chapter}} // {{=camp}}"
            f' "Today we have {{item.told}} and helped {{helper}} with the {{thing}}," said {{hero}} {{=tone}}. "{plan}" // Now they had {_NUMBERS[i - 1]} of'
            f" the {_NUMBERS[size - 1]} things.{{helper{i}<helper}}{{thing{i}<thing}}{{item{i}<item}}{{item<next}}"
        )
    return " // ".join(chapters)


def _return(size: int) -> str:
    """Tell what each thing is and who gave it; nothing here is new."""
    gifts = " ".join(
        f"The {{metal{i}}} {{gear{i}}} from the {{place{i}}} was the gift of {{helper{i}}}, whom they had helped with the {{thing{i}}}."
        for i in range(1, size + 1)
    )
    return f"Chapter {_NUMBERS[size + 1].title()}: The Way Home // {{=homeward}} // {{=show}} {gifts} // {{=built}} {{=ending4}}"


LEVEL_4 = {
    "title4": ["{hero=name}, {friend=name} and the Great {^wonder=wonder}"],
    "wonder stops runs": lines("""
        clock | did not tick any more | began to tick
        windmill | did not turn any more | began to turn
        lighthouse | did not shine any more | shone over the sea
        organ | did not play any more | began to play
        fountain | did not flow any more | splashed and sparkled
        carousel | did not go around any more | went around and around
        bell | did not ring any more | rang so loud that the windows shook
        telescope | did not show the stars any more | showed ten thousand stars
        bridge | did not open for the ships any more | opened for a ship with white sails
        balloon | did not rise any more | rose above the roofs
        """),
    "gear": words("""wheel, spring, chain, lens, screw, crank, pipe, pulley, lever, hinge, bolt, handle, dial, valve, plank, hook, rod, spindle,
        ladle, pump"""),
    "tale4": ["Chapter One: The List // {=home} {=ruin} // {=gather}"],
    "ruin": lines("""
        The pride of {village} was the great {wonder}, built by {a mood1=mood}, {mood2=mood} {=trade} with {=number} {=look@thing} {=goods}. But in \
            the {=strong} {=storm} {a =rough} {=faller} had fallen on it, and it {wonder.stops}.
        Everyone in {village} loved the great {wonder}, which was {=look@thing} and {=look@thing}. But {a mood1=mood}, {mood2=mood} {=kicker} had \
            kicked it, and it {wonder.stops}.
        """),
    "gather": ["""Old {sage=sage} {=manner} opened {a =rough}, {=hue} book. "We need {size=size} things to mend it," {sage.he} said {=tone}.
        {=list@size.number} // {=leave} // {=chapters@size.number} // {=return@size.number}"""],
    "size number": [f"{_NUMBERS[size - 1]} | {size}" for size in _SIZES],
    **{f"list@{size}": [f'"{_list(size)}"'] for size in _SIZES},
    **{f"chapters@{size}": [_chapters(size)] for size in _SIZES},
    **{f"return@{size}": [_return(size)] for size in _SIZES},
    "remote": words("old, distant, lovely, quiet, lonely, busy, far, green"),
    "grown@she": words("Cora, Helga, Matilda, Josephine, Amelia, Judith, Leonora, Rebecca, Sophia, Theresa, Victoria, Yvonne, Beatrice, Dorothy"),
    "grown@he": words("Bruno, Igor, Stefan, Ambrose, Bernard, Dominic, Ferdinand, Gilbert, Jasper, Leopold, Marcus, Patrick, Roland, Vincent"),
    "leave": lines("""
        "We will fetch them," said {hero} {=tone}, and {friend} {=danced} {=so_long}. So {sage} gave them {a =sturdy} {item=item} for the road and \
            {=number} {=flavour} {=cookies}.
        "Who will go?" asked {sage} {=tone}. // "We will," said {hero} and {friend}. They packed {=number} {=flavour} {=cookies}, and {sage} lent them \
            {a =sturdy} {item=item}.
        """),

    # a chapter: the way, the arrival, the adventure, the thanks, the night
    "chapter": ["{=leaving} {=onward} {=way@item.way} // {=arrival} {=tale2@plot.tale} // {=parting}"],
    "leaving": lines("""
        The next {=day_time} was {=weather}, and they set out {=manner} for the {place}.
        On {=weekday} they looked at {a =look@thing} map and took the {=weary} road to the {place}.
        "To the {place}!" {=cheered} {friend}, and they walked {=manner} with {a =mood} {=animal}.
        """),
    "arrival": lines("""
        {^place.where} lived {a mood1=mood}, {mood2=mood} {elder=trade} called {helper=grown@elder.he}, who wore {a =look@thing} {=wrap}.
        Soon they stood {place.where}. There they met {a mood1=mood}, {mood2=mood} {elder=trade} called {helper=grown@elder.he} with {=number} \
            {=look@thing} {=goods}.
        Then they saw the {place}, and {a =mood} {=animal} led them to {a mood1=mood}, {mood2=mood} {elder=trade} called {helper=grown@elder.he}.
        """),
    "parting": lines("""
        "{=cheer}!" {=cheered} {helper}. "Take the {metal} {gear} for {sage}, and {a =sturdy} {next=item} for the road."
        {helper} heard of it and {=danced} {=so_long}. "For this you shall have the {metal} {gear}," said the {elder} {=tone}, "and my {=sturdy} \
            {next=item} too."
        Then they told {helper} about the great {wonder}. The {elder} {=manner} took the {metal} {gear} out of {a =look@thing} {=box} and gave them \
            {a =sturdy} {next=item} as well.
        """),
    "camp": lines("""
        That night {hero} dreamed of {=number} {=look@thing} {=flock}, and {friend} dreamed of {a =look@thing} {=shape}.
        In the evening they lay in {=straw}, ate {a =flavour} {=dish} and sang of {a mood1=mood}, {mood2=mood} {=animal}.
        Before they slept, {hero} told {friend} a story of {a =mood} {=trade}, {a =mood} {=animal} and {=number} {=look@thing} {=goods}.
        """),

    # the end: what was gathered, from whom, and what it is good for
    "homeward": lines("""
        The way home was {=weary} and {=lengthy}. {=onward} {=way@item.way}
        They walked home with {a =mood} {=animal} and {=number} {=look@thing} {=flock} behind them. {=onward} {=way@item.way}
        """),
    "show": lines("""
        On {=weekday} they stood before old {sage} and laid all they had on {a =rough} {=board}.
        {sage} was waiting for them behind {a =rough} {=barrier}. "{=cheer}!" {sage.he} {=cheered}. "Show me what you have."
        """),
    "built": lines("""
        They worked until {=weekday} with {=number} {=look@thing} {=fixing} and some {=glue}. Then {sage} {=manner} put in the {metal1} {gear1}, and \
            the great {wonder} {wonder.runs}.
        With {a =mood} {=trade} and {a =mood} {=trade} they mended it in {=number} {=lengthy} days, and the great {wonder} {wonder.runs}.
        """),
    "ending4": ["""{=ending4b} So {hero}, {a mood1=mood}, {mood2=mood} {hero.child}, and {friend}, {a mood3=mood}, {mood4=mood} {friend.child}, came
        home."""],
    "ending4b": lines("""
        Everyone in {village} {=danced} {=so_long}, and there was {a =flavour} {=dish} for {hero} and {a =flavour} {=dish} for {friend}.
        The people made {hero} {a =look@thing} {=wrap} and {friend} {a =look@thing} {=wrap}, and every {=season} they thank them with {a =flavour} \
            {=dish}.
        """),
}
