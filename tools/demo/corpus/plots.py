"""Words and sentence frames of the story grammar.

Slots: hero, a_hero, name, he/him/his; friend, a_friend, other, ohe/ohim/ohis; place ("near the
lake"), thing, a_thing, food, weather, time, mood, trait, hiding, colour.
"""

from typing import NamedTuple

HEROES = (
    "fox", "bear", "rabbit", "mouse", "cat", "dog", "frog", "duck", "owl", "hedgehog", "squirrel",
    "turtle", "pig", "lamb", "goat", "donkey", "pony", "sparrow", "crow", "hen", "beaver", "otter",
    "elephant", "lion", "monkey", "penguin", "whale", "snail", "bee", "ant", "girl", "boy",
    "farmer", "baker", "sailor", "king", "queen", "giant", "dragon", "robot", "knight", "painter",
)  # fmt: skip

FEMALE, MALE = {"girl", "queen", "hen"}, {"boy", "king"}

NAMES = (
    ("Pip", False), ("Mia", True), ("Tom", False), ("Lily", True), ("Max", False), ("Ruby", True),
    ("Finn", False), ("Bella", True), ("Oscar", False), ("Daisy", True), ("Ben", False),
    ("Lucy", True), ("Sam", False), ("Nora", True), ("Toby", False), ("Ella", True),
    ("Hugo", False), ("Rosa", True), ("Leo", False), ("Clara", True), ("Felix", False),
    ("Anna", True), ("Jack", False), ("Molly", True), ("Theo", False), ("Ivy", True),
    ("Milo", False), ("Poppy", True), ("Noah", False), ("Greta", True),
)  # fmt: skip

PLACES = (
    "near a quiet lake", "at the edge of a forest", "in a small village", "on a green hill",
    "by the sea", "in an old house", "next to a river", "in a sunny valley", "under a big oak",
    "on a farm", "on a small island", "at the end of a long road", "behind a tall mountain",
    "in a busy town", "near an old mill", "beside a deep wood",
)  # fmt: skip

THINGS = (
    "boat", "lamp", "hat", "kite", "ball", "book", "key", "drum", "bell", "basket", "map", "ring",
    "scarf", "lantern", "bucket", "rope", "clock", "flute", "coat", "cup", "mirror", "ladder",
    "blanket", "box", "stone", "feather", "wheel", "bicycle", "spoon", "umbrella",
)  # fmt: skip

FOODS = (
    "bread", "apples", "honey", "soup", "berries", "cake", "cheese", "nuts", "carrots", "pears",
    "pancakes", "plums",
)  # fmt: skip
WEATHER = (
    "The sun was warm", "A soft rain was falling", "The wind was strong", "The sky was clear",
    "Snow lay on the ground", "The morning was cool", "The air smelled of flowers",
)  # fmt: skip
TIMES = (
    "one morning", "one day", "one evening", "one afternoon", "one cold day", "early one morning",
    "one summer day",
)  # fmt: skip
SIZES = ("small", "little", "young", "kind", "brave", "shy", "clever", "old", "merry", "quiet")
MOODS = ("sad", "worried", "tired", "a little afraid", "cold and hungry", "lonely")
TRAITS = (
    "{he} was always kind to others", "{he} loved to laugh", "{he} liked to ask questions",
    "{he} was never in a hurry", "{he} knew every path and every tree", "{he} sang all day long",
)  # fmt: skip
HIDING = (
    "under a bush", "behind a tree", "in the tall grass", "under a bridge", "inside a hollow log",
    "behind the barn", "at the bottom of a well", "between two rocks", "on top of a roof",
)  # fmt: skip
COLOURS = ("red", "blue", "green", "yellow", "white", "golden", "silver", "brown")

OPENINGS = (
    "Once upon a time there was {a_hero} called {name}.",
    "Once there was {a_hero}. {he} was called {name}.",
    "There was once {a_hero} named {name}.",
    "Long ago there lived {a_hero} whose name was {name}.",
    "This is the story of {name}, {a_hero}.",
    "{name} was {a_hero}.",
)
SECONDS = (
    "{he} lived {place}, and everybody knew {him}.",
    "{he} lived {place} with {his} family.",
    "{he} lived {place}, all alone.",
    "{name} lived {place} and was happy there.",
    "{his} home was {place}.",
    "{he} lived {place}, and {he} loved {food} more than anything.",
)
ENDINGS = (
    "And they were friends from that day on.",
    "That night {name} slept very well.",
    "{name} never forgot that day.",
    "And so {name} learned that a friend is worth more than gold.",
    "From then on {name} was never alone again.",
    "And if you walk there today, you may still hear them laugh.",
    "Everybody went home happy.",
    "And that is the end of the story.",
    "{name} smiled all the way home.",
    "It had been a very good day.",
)


class Plot(NamedTuple):
    """steps: one frame of each is taken. wish, helper: answers to questions about the story."""

    steps: tuple[tuple[str, ...], ...]
    wish: str
    helper: str


_MEET = (
    "Then {name} met {a_friend} called {other}.",
    "On the way {he} met {a_friend}. {ohis} name was {other}.",
    "Just then {a_friend} came by. It was {other}.",
    "Soon {a_friend} named {other} heard about it.",
)
_ASK = (
    '"What is wrong?" asked {other}.',
    '"Why are you so {mood}?" {other} asked.',
    '"Can I help you?" asked {other}.',
    '"Tell me what happened," said {other}.',
)
_HELP = (
    '"I will help you," {ohe} said. "Two can do more than one."',
    '"Do not worry," said {other}. "We will do it together."',
    "{other} thought for a while. Then {ohe} had an idea.",
    "{other} was kind and wanted to help at once.",
)
_THANKS = (
    '"Thank you, {other}!" said {name}. "You are a good friend."',
    "{name} was so glad that {he} danced.",
    '"I could not have done it without you," said {name}.',
    "{name} gave {other} some {food} to say thank you.",
    "They laughed and shared some {food}.",
)
_LOOK = (
    "They looked here and they looked there.",
    "They walked a long way and looked everywhere.",
    "They asked everybody they met.",
    "They followed the small marks on the ground.",
)

PLOTS = (
    Plot(
        (
            ("{name} had a {colour} {thing}, and {he} took it everywhere.",
             "The best thing {name} had was a {colour} {thing}.",
             "Of all {his} things, {name} loved {his} {thing} the most."),
            ("But {time} the {thing} was gone.", "Then, {time}, {he} could not find the {thing}.",
             "{time} {he} woke up, and the {thing} was not there."),
            ("{name} looked in every corner, but it was not there. {he} was {mood}.",
             "{he} looked under the bed and behind the door. Nothing! {he} was {mood}.",
             "{he} sat down and felt {mood}."),
            _MEET, _ASK,
            ('"I have lost my {thing}," said {name}.', '"My {thing} is gone," said {name}.',
             '"I cannot find my {thing}," {name} answered.'),
            _HELP, _LOOK,
            ("At last {other} saw something {colour} {hiding}. It was the {thing}!",
             "And there it was: the {thing} lay {hiding}.",
             "Then {other} pointed. The {thing} was {hiding}!"),
            _THANKS,
        ),
        "{name} wanted to find {his} {thing}.",
        "{other} the {friend} helped {name} to find the {thing}.",
    ),
    Plot(
        (
            ("{name} wanted {a_thing} more than anything.", "{name} dreamed of having {a_thing}.",
             "There was one thing {name} did not have: {a_thing}."),
            ("But {he} had no money.", "But nobody had one to give away.",
             "But {a_thing} costs a lot, and {name} was poor."),
            ("So {time} {he} set out to find work.", "So {time} {he} left to look for one.",
             "{time} {he} put some {food} in a bag and began to walk."),
            _MEET,
            ("{other} was trying to carry a heavy sack and was very tired.",
             "{other} had fallen into a ditch and could not get out.",
             "{other} sat {hiding} and was crying."),
            ("{name} did not think twice and helped {ohim}.", "{name} stopped and helped {ohim}.",
             '"Let me help you," said {name}, and {he} did.'),
            ('"You are kind," said {other}. "What can I do for you?"',
             '"Thank you," said {other}. "Is there something you wish for?"'),
            ('"I would like {a_thing}," said {name}.', '"I wish I had {a_thing}," said {name}.'),
            ('"Then take mine," said {other}. "I do not need it any more."',
             "{other} smiled, went home and came back with a {colour} {thing}.",
             '"I made one last winter," said {other}. "It is yours."'),
            ("{name} held the {thing} and could not believe it.",
             "It was the most beautiful {thing} {name} had ever seen."),
        ),
        "{name} wanted {a_thing}.",
        "{other} the {friend} gave {name} {a_thing}.",
    ),
    Plot(
        (
            ("{time} {name} went for a walk. {weather}.", "{weather}, and {name} went out to play.",
             "{time} {name} wanted to see the world."),
            ("{he} walked and walked and did not look back.",
             "{he} followed a {colour} bird, deeper and deeper into the wood.",
             "{he} went further than ever before."),
            ("When it got dark, {he} did not know the way home.",
             "Soon {he} did not know where {he} was.", "Then {he} saw that {he} was lost."),
            ("{he} was {mood} and sat down {hiding}.", "{he} called, but nobody answered.",
             "{he} felt {mood}."),
            _MEET, _ASK,
            ('"I am lost," said {name}.', '"I cannot find my way home," said {name}.'),
            ('"I know the way," said {other}. "Come with me."',
             '"Take my {thing}," said {other}. "It will show us the way."',
             "{other} had {a_thing} and knew every path."),
            ("They walked side by side, and it was not dark any more.",
             "Together they crossed the hill and the bridge.",
             "They sang a song so that they would not be afraid."),
            ("At last they saw the light of a window. {name} was home.",
             "And there was the house of {name}, just as before."),
            _THANKS,
        ),
        "{name} wanted to find the way home.",
        "{other} the {friend} showed {name} the way home.",
    ),
    Plot(
        (
            ("{name} was afraid of the dark.", "{name} was afraid of water and could not swim.",
             "{name} was afraid of loud sounds."),
            ("The others laughed at {him}.", "{he} did not tell anybody.",
             "{he} always stayed at home."),
            ("{time} {he} heard a cry. {weather}.", "{time} somebody called for help."),
            ("It was {other}, {a_friend}, who had fallen into the river.",
             "It was {other}, {a_friend}, caught {hiding}."),
            ("{name} was {mood}. {his} heart beat fast.", "{name} wanted to run away."),
            ("But nobody else was there.", "But then {he} thought of {other}."),
            ('"I am coming!" {he} called, and took {his} {thing}.',
             "{he} took {a_thing} and ran as fast as {he} could."),
            ("With the {thing} {he} pulled {ohim} out.",
             "{other} held on to the {thing}, and {name} pulled with all {his} strength."),
            ('"You saved me," said {other}. "You are so brave!"',
             '"Were you not afraid?" asked {other}. "I was," said {name}, "but you needed me."'),
        ),
        "{name} wanted to help {other}.",
        "Nobody helped {name}. {name} helped {other}.",
    ),
    Plot(
        (
            ("{time} {name} found {a_thing} {hiding}.", "{time} {he} saw {a_thing} on the road."),
            ("It was {colour} and it shone in the sun.", "It was old, but it was beautiful."),
            ('"Now it is mine," {he} said.', "{he} wanted to keep it."),
            ("Then {he} saw {a_friend} called {other}, who was looking for something.",
             "But the next day {he} met {other}, {a_friend}, who was {mood}."),
            ('"I have lost my {thing}," said {other}. "My mother gave it to me."',
             '"Have you seen my {thing}?" asked {other}.'),
            ("{name} said nothing and went home.", "{name} looked at the ground."),
            ("That night {he} could not sleep.", "But {he} could not stop thinking about it."),
            ("In the morning {he} took the {thing} to {other}.",
             'So {he} went to {other} and said: "Here is your {thing}."'),
            ("{other} was so happy that {ohe} cried.",
             '"Thank you for being honest," said {other}.'),
            ("They sat in the sun and ate {food} together.",
             "{other} asked {him} to stay, and they played until dark."),
        ),
        "{name} wanted to keep the {thing}, but gave it back.",
        "Nobody had to help {name}. {name} gave the {thing} back to {other}.",
    ),
    Plot(
        (
            ("{time} it was the birthday of {other}, {a_friend}.",
             "{other}, {a_friend}, was the best friend of {name}. {ohis} birthday was near."),
            ("{name} wanted to give {ohim} something special.",
             "{name} did not know what to give {ohim}."),
            ('"I will make {a_thing}," {he} thought.', "Then {he} had an idea: {a_thing}!"),
            ("{he} worked all day and all night.", "{he} cut and glued and painted it {colour}."),
            ("But when it was done, it broke.", "But then the rain washed the colour off."),
            ("{name} was {mood}.", "{name} wanted to cry."),
            ("{he} went to the party with empty hands.", "All {he} could bring was some {food}."),
            ('"I have no present," {he} said.', '"I am sorry, I have nothing," said {name}.'),
            ('"But you came," said {other}. "That is all I wanted."',
             "{other} laughed and hugged {him}."),
            ("Then they mended the {thing} together.", "They danced and ate {food}."),
        ),
        "{name} wanted to make {a_thing} for {other}.",
        "{other} the {friend} made {name} feel better.",
    ),
    Plot(
        (
            ("{name} and {other}, {a_friend}, wanted to know who was the fastest.",
             '"I am faster than you," said {other}, {a_friend}, {time}.'),
            ("So they ran a race to the old bridge.", "They said they would race to the big tree."),
            ("{other} ran off like the wind. {name} was slow, but {he} did not stop.",
             "{other} was soon far ahead, and {name} was far behind."),
            ("Halfway {other} saw some {food} and sat down to eat.",
             "{other} felt so sure that {ohe} lay down {hiding} and slept."),
            ("{name} walked on, step by step.", "{name} went past {ohim} and said nothing."),
            ("When {other} looked up, {name} was already there.",
             "When {other} woke up, it was too late. {name} had won."),
            ('"How did you do that?" asked {other}.', "{other} could not believe it."),
            ('"I did not stop," said {name}.', '"Slow and steady," said {name}, and smiled.'),
            ("They shared the prize, which was {a_thing}.",
             "{name} won {a_thing}, but {he} let {other} play with it too."),
        ),
        "{name} wanted to win the race.",
        "Nobody helped {name}. {he} just did not stop.",
    ),
    Plot(
        (
            ("{name} had {a_thing} that was broken.", "{time} the {thing} of {name} broke."),
            ("{he} tried to mend it, but {he} could not.", "{he} tried again and again."),
            ("{weather}, and {name} sat outside and felt {mood}.",
             '"I will never get it right," {he} said.'),
            _MEET, _ASK,
            ('"My {thing} is broken," said {name}.', "{name} showed {ohim} the {thing}."),
            ('"Try it like this," said {other}, and showed {him} how.',
             '"Let us look at it slowly," said {other}. "One part after the other."'),
            ("They worked until the evening.", "It took a long time, but they did not give up."),
            ("At last the {thing} was as good as new.", "And then it worked!"),
            _THANKS,
        ),
        "{name} wanted to mend the {thing}.",
        "{other} the {friend} helped {name} to mend the {thing}.",
    ),
)  # fmt: skip
