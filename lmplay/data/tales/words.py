"""The words of the tales, by what they can do in one: each list is a rule of the grammar.  Data floor; imports nothing of lmplay.

A key names the rule and its columns; engine.py explains the language.  Nothing here may be chosen and not seen: no two options of a list are
equal, and none is another's beginning unless the longer one goes on within a word.  No word here begins with a letter that misleads "a" and "an".
"""
from __future__ import annotations


def words(text: str) -> list[str]:
    """Split a list at its commas."""
    return [word.strip() for word in text.split(",")]


def lines(text: str) -> list[str]:
    """Split a list at its line ends."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def _each(columns: str, text: str) -> list[str]:
    """Give every word of a list the same columns."""
    return [f"{word} | {columns}" for word in words(text)]


_SHE, _HE = "she | her | her", "he | him | his"

PEOPLE = {
    "name he him his child": [
        *_each(f"{_SHE} | girl", """Mira, Anna, Lily, Rosa, Nora, Ella, Clara, Ida, Ruby, Molly, Hazel, Greta, Zoe, Lena, Maya, Nina, Olive, Sara,
            Vera, Wanda, Bella, Dora, Flora, Kitty"""),
        *_each(f"{_HE} | boy", """Tom, Ben, Max, Leo, Finn, Oscar, Hugo, Otto, Sam, Jack, Theo, Noah, Felix, Emil, Paul, Peter, Adam, Simon, Toby,
            Victor, Walter, Henry, Frank, Milo"""),
    ],
    "trade he him his": [
        *_each(_SHE, "baker, weaver, teacher, gardener, potter, doctor, painter, nurse, captain, tailor, singer, farmer, hunter, pilot"),
        *_each(_HE, "miller, cobbler, carpenter, fisherman, blacksmith, shepherd, cook, postman, sailor, ferryman, barber, watchman, butcher, soldier"),
    ],
    "relative": words("mother, father, aunt, uncle, grandmother, grandfather, sister, brother"),
    "mood": words("""kind, brave, quiet, curious, clever, careful, cheerful, gentle, patient, friendly, merry, polite, proud, shy, busy, bold, lively,
        stubborn, dreamy, nimble, tall, young, round, thin, jolly, tired, sleepy, grumpy, wise, noisy, hungry, silent, modest, cross, lazy, funny,
        calm, tidy, sweet, strong, serious, daring, restless, faithful, humble, chatty, dizzy"""),
    "glad": words("happy, glad, pleased, delighted, thankful, excited, joyful, amazed"),
    "sad": words("sad, unhappy, worried, sorry, upset, lonely, gloomy, ashamed"),
}

PLACES = {
    "place where kind": lines("""
        garden | in the garden | yard
        farm | on the farm | yard
        meadow | in the meadow | yard
        orchard | in the orchard | yard
        field | in the field | yard
        hill | on the hill | yard
        forest | in the forest | wood
        grove | in the grove | wood
        valley | in the valley | wood
        moor | on the moor | wood
        jungle | in the jungle | wood
        mountain | on the mountain | wood
        beach | on the beach | shore
        lake | at the lake | shore
        river | at the river | shore
        pond | at the pond | shore
        harbour | at the harbour | shore
        island | on the island | shore
        market | at the market | town
        square | in the square | town
        school | at the school | town
        station | at the station | town
        mill | at the mill | town
        castle | at the castle | town
        park | in the park | town
        bridge | at the bridge | town
        """),
    "spot@yard": words("""under the hedge, behind the shed, beside the well, in the grass, under the wheelbarrow, behind the haystack, in the ditch,
        beside the gate, under the apple tree, among the cabbages, near the scarecrow, on top of the wall, under a bucket, in the clover"""),
    "spot@wood": words("""in a hollow log, under the ferns, behind the oak, among the roots, beside the anthill, under the leaves, in the brambles,
        behind the rock, beside the spring, under the pine, among the mushrooms, between two stones, in a badger hole, near the waterfall"""),
    "spot@shore": words("""under the boat, among the reeds, behind the rocks, beside the pier, in the sand, under the willow, in the seaweed, beside
        the anchor, in the fishing net, near the lighthouse, among the pebbles, inside a barrel, under an oar, behind the dunes"""),
    "spot@town": words("""under the bench, behind the fountain, beside the statue, on the steps, under the cart, behind the church, beside the pump,
        in the gutter, under the arch, near the lamp post, in a doorway, among the crates, behind the clock tower, on a windowsill"""),
    "barrier": words("fence, wall, hedge, gate, haystack, shed, tree, cart, rock, house, barn, well"),
    "rough": words("old, long, big, little, low, wide, dark, crooked, narrow, high, plain, dusty"),
    "weather": words("sunny, windy, cloudy, cold, cool, clear, warm, mild, misty, bright, fresh, grey, chilly, golden, foggy, lovely"),
    "day": words("morning, afternoon, evening, day, Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "weekday": words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday"),
    "storm": words("storm, rain, snow, wind, hail, flood, frost, thunder"),
    "strong": words("strong, sudden, cold, wild, rough, sharp, bitter, heavy, fierce, mighty"),
}

THINGS = {
    "losable way sort": [
        *_each("light | thing", "kite, scarf, hat, flag, ribbon, feather, map, letter, picture, balloon"),
        *_each("small | thing", "key, coin, ring, button, whistle, bell, spoon, shell, comb, pencil, brush, watch"),
        *_each("round | thing", "ball, marble, hoop, bead, wheel, globe"),
        *_each("pet | pet", "kitten, puppy, lamb, rabbit, piglet, pony, goose, hen"),
    ],
    "torn": words("kite, coat, sail, blanket, flag, tent, shirt, apron, scarf, jacket, cloak, net"),
    "broken": words("chair, cart, sled, ladder, boat, table, rake, drum, fiddle, swing, wheelbarrow, bench"),
    "cracked": words("cup, bowl, jug, jar, pot, plate, vase, mirror, teapot, dish, lantern, bottle"),
    "wish": words("drum, bicycle, doll, boat, guitar, sled, lamp, globe, clock, saddle, puppet, trumpet, fiddle, book, kite, tent"),
    "hue": words("red, blue, green, yellow, white, black, brown, purple, orange, pink, grey, golden, silver, violet"),
    "look@thing": words("""red, blue, green, yellow, white, black, brown, purple, orange, pink, grey, silver, golden, striped, spotted, shiny, plain,
        old, tiny, fine, pretty, painted, little, big, clean, strange, bright, dark, lovely, wooden, faded, dusty, soft, light, neat, huge, heavy,
        dotted, pale"""),
    "look@pet": words("""white, black, brown, grey, spotted, striped, tiny, clever, old, young, gentle, noisy, lively, shy, little, big, merry, lazy,
        proud, hungry"""),
    "gift": words("""feather, leaf, shell, pebble, flower, nut, ribbon, acorn, button, twig, bead, coin, ring, bell, spoon, key, stone, bone, boot,
        sock, candle, pencil"""),
    "goods": words("""jugs, pots, boots, baskets, eggs, chairs, candles, bricks, carpets, lamps, boxes, barrels, plates, bells, hats, pumpkins, books,
        buckets, brooms, blankets, bottles, potatoes"""),
    "flock": words("""birds, ducks, sheep, cows, horses, geese, swans, bees, ants, frogs, clouds, flowers, trees, stones, kittens, snails, roses,
        rabbits, spiders, butterflies, goats, pigeons"""),
    "seen": words("white, little, pretty, big, lovely, quiet, wild, brown, grey, fine, tiny, distant"),
    "shape": words("star, heart, moon, flower, fish, bird, leaf, sun, tree, crown, ship, snail"),
    "fabric": words("silk, wool, linen, velvet, leather, cotton, lace, canvas"),
    "fixing": words("nails, screws, pegs, hooks, bolts, boards"),
    "glue": words("glue, wax, clay, tar, plaster, paint, paste, putty"),
    "bag": words("pocket, bag, basket, sleeve, sack, purse, apron, hat"),
    "wrap": words("scarf, coat, cloak, shawl, jacket, blanket, apron, shirt, hat, belt"),
    "box": words("box, basket, crate, bucket, barrel, sack, drawer, trunk"),
    "board": words("table, shelf, bench, chair, bed, stove, chest, piano"),
    "seat": words("bench, chair, bed, chest, rug, stool, box, mat"),
    "sharp": words("nail, thorn, hook, branch, rock, fence, twig, gate"),
    "number": words("two, three, four, five, six, seven, eight, nine, ten, twelve"),
    "much": words("thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty, thirty, forty, fifty, sixty"),
    "period": words("days, weeks, months, winters, summers, years"),
}

ANIMALS = {
    "animal many diet cried": lines("""
        fox | foxes | meat | yapped
        dog | dogs | meat | barked
        cat | cats | meat | purred
        owl | owls | meat | hooted
        wolf | wolves | meat | howled
        seal | seals | fish | barked
        otter | otters | fish | chirped
        pelican | pelicans | fish | grunted
        sparrow | sparrows | grain | chirped
        mouse | mice | grain | squeaked
        pigeon | pigeons | grain | cooed
        duck | ducks | grain | quacked
        turkey | turkeys | grain | gobbled
        rabbit | rabbits | leaf | squeaked
        deer | deer | leaf | snorted
        donkey | donkeys | leaf | brayed
        sheep | sheep | leaf | bleated
        cow | cows | leaf | mooed
        horse | horses | leaf | snorted
        squirrel | squirrels | fruit | chattered
        bear | bears | fruit | growled
        badger | badgers | fruit | grunted
        monkey | monkeys | fruit | chattered
        parrot | parrots | fruit | squawked
        """),
    "food@meat": words("ham, sausage, chicken, bacon, beef, mutton"),
    "food@fish": words("herring, trout, salmon, cod, shrimp, crab"),
    "food@grain": words("corn, oats, barley, wheat, crumbs, rice"),
    "food@leaf": words("hay, clover, lettuce, carrots, cabbage, grass"),
    "food@fruit": words("berries, nuts, apples, pears, plums, cherries"),
    "kicker": words("cow, horse, bull, donkey, goat, ram, pig, sheep"),
    "jumper": words("cat, puppy, kitten, hen, goose, rabbit, parrot, monkey, squirrel, frog"),
    "bug": words("butterfly, beetle, bee, moth, frog, mouse, leaf, fly, spider, sparrow"),
}

DOINGS = {
    "manner": words("""slowly, quickly, quietly, calmly, eagerly, bravely, gently, carefully, silently, patiently, shyly, anxiously, thoughtfully,
        hopefully, wearily, nervously, softly, boldly, lazily, swiftly, busily, secretly"""),
    "gladly": words("happily, gently, softly, proudly, cheerfully, merrily, gladly, shyly, contentedly, eagerly"),
    "sadly": words("sadly, softly, weakly, faintly, wearily, quietly, hoarsely, anxiously"),
    "tone": words("""softly, gently, loudly, calmly, kindly, firmly, quickly, slowly, shyly, politely, proudly, bravely, quietly, warmly, eagerly,
        thoughtfully, seriously, boldly, patiently, wisely"""),
    "watch": words("watch, count, draw, admire, study, follow"),
    "cheered": words("said, cried, called, shouted, laughed, sang"),
    "sobbed": words("said, cried, whispered, sighed, sobbed, groaned"),
    "did": words("washed, carried, sold, painted, cleaned, counted, packed, fetched, stacked, polished"),
    "danced": words("danced, sang, laughed, smiled, hummed, whistled, cheered, grinned"),
    "so_long": words("all day, all the way home, until bedtime, like a king, in the rain, on the stairs, for hours, with joy, until Monday, until supper"),
    "cheer": words("Hurrah, How lovely, What luck, Thank goodness, Well done, What a day, Wonderful, Goodness me"),
}

FOODS = {
    "dish": words("cake, pie, tart, pudding, pancake, muffin, waffle, stew, soup, loaf, roll, biscuit, dumpling, jelly"),
    "flavour": words("plum, apple, cherry, pear, lemon, honey, carrot, pumpkin, ginger, onion, cheese, walnut"),
    "ingredient": words("flour, sugar, butter, milk, salt, cream, yeast, oil"),
    "drink": words("water, milk, tea, cream"),
    "vessel": words("cup, bowl, jug, bottle, pot, jar, bucket, glass"),
}

WORDS = {**PEOPLE, **PLACES, **THINGS, **ANIMALS, **DOINGS, **FOODS}
