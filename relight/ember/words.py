"""Word lists and made-up words, in English and Chinese. Knows no task.

Names of tools, of their arguments, and most words whose letters are counted are made up of
syllables, so that no list of them can be learnt: a model can only copy or spell them.
"""

from random import Random
from typing import Literal

from relight.ember.split import Split, split_of

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")


def _listed(words: str) -> list[str]:
    return words.split()


ONSETS = _listed("b br c d dr f g h j k l m n p r s st t tr v w z")
VOWELS = _listed("a e i o u ai")
CODAS = ["", "", "", "", "l", "n", "r", "s", "t", "x"]

THINGS: tuple[tuple[str, str], ...] = (
    ("wool", "羊毛"), ("salt", "盐"), ("honey", "蜂蜜"), ("paper", "纸张"), ("copper", "铜"),
    ("timber", "木材"), ("coffee", "咖啡"), ("rice", "大米"), ("silk", "丝绸"), ("glass", "玻璃"),
    ("cotton", "棉花"), ("olive oil", "橄榄油"), ("cheese", "奶酪"), ("leather", "皮革"),
    ("sugar", "糖"), ("tea", "茶叶"), ("iron", "铁"), ("gold", "黄金"), ("silver", "白银"),
    ("marble", "大理石"), ("pepper", "胡椒"), ("wheat", "小麦"), ("wine", "葡萄酒"), ("ice", "冰"),
    ("sand", "沙子"), ("clay", "黏土"), ("rubber", "橡胶"), ("milk", "牛奶"), ("corn", "玉米"),
    ("fish", "鱼"), ("coal", "煤炭"), ("bread", "面包"),
)  # fmt: skip

MEASURES: tuple[tuple[str, str], ...] = (
    ("price", "价格"), ("weight", "重量"), ("stock", "库存"), ("quality", "质量"), ("age", "年份"),
    ("colour", "颜色"), ("origin", "产地"), ("owner", "主人"), ("demand", "需求"), ("cost", "成本"),
    ("supply", "供应"), ("volume", "体积"),
)  # fmt: skip

PLACES: tuple[tuple[str, str], ...] = (
    ("harbour", "港口"), ("garden", "花园"), ("library", "图书馆"), ("tower", "塔楼"),
    ("kitchen", "厨房"), ("cellar", "地窖"), ("bridge", "大桥"), ("museum", "博物馆"),
    ("station", "车站"), ("theatre", "剧院"), ("school", "学校"), ("castle", "城堡"),
    ("farm", "农场"), ("mill", "磨坊"), ("temple", "寺庙"), ("market", "市场"),
    ("workshop", "作坊"), ("hospital", "医院"), ("island", "小岛"), ("lighthouse", "灯塔"),
    ("bakery", "面包店"), ("stable", "马厩"), ("attic", "阁楼"), ("vault", "金库"),
)  # fmt: skip

COMMON = _listed("""
able about above across after again against almost alone along already always among anchor animal
answer apple arrow autumn balance banana basket battle beach beauty because become before begin
behind believe better between bicycle bird blanket blossom border bottle bottom branch breakfast
bridge bright bring brother bubble bucket building butter button cabbage camera candle capital
captain carpet carrot castle cattle center certain chair chance change chapter cheese cherry
chicken children chimney choice circle city clean clever climb clock cloud coffee collect color
common company compare corner cotton council country courage cousin cover create cricket crystal
culture curtain daughter decide degree deliver desert dinner doctor dollar dragon drawer dream
during eagle early earth effort eleven engine enough evening example feather fellow fence festival
figure finger flower follow forest forget fortune forward freedom friend frozen future gallery
garden gather gentle giant ginger glass golden grammar grand grape grass green guitar hammer
happen harbor harvest heart heaven hello history holiday honest honey horse hotel hundred hunter
husband imagine indeed insect inside island jacket jewel journey jungle kettle kitchen kitten
knife ladder language laptop lantern laughter leader leather lemon letter library light limit
listen little lizard lonely market marriage master matter meadow measure medicine melon member
memory message middle minute mirror mississippi moment monkey morning mother mountain muffin
museum music narrow nature needle neither nephew notice number object ocean office onion orange
orchard other oven owner oyster paint palace paper parade parent parrot partner passenger pattern
peaceful pebble pencil pepper perfect person piano picture pillow planet plenty pocket poetry
police potato powder present pretty prince promise pumpkin purple puzzle quarter queen question
quick quiet rabbit railway rain rather reason record remember rescue result ribbon river rocket
sailor salad sample school science season second secret shadow shelter shoulder silence silver
simple sister slipper snow soldier spider spoon spring square station stomach strange strawberry
street strong student sudden summer sunset supper surface sweater symbol system table talent
teacher temple theater thunder ticket tiger tomato tomorrow tongue tooth towel tower travel
treasure trouble tunnel turtle twelve umbrella uncle under until useful valley vegetable velvet
village violet visitor volcano walnut water weather wedding welcome whisper window winter wisdom
wonder wooden yellow yesterday young zebra
""")


COMMON_SET = frozenset(COMMON)


def made_up_word(rng: Random, syllables: int) -> str:
    return "".join(
        rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(syllables)
    )


def made_up_name(rng: Random, split: Split) -> str:
    """A tool's or argument's name of one or two made-up words, on its side of the split."""
    while True:
        words = [made_up_word(rng, rng.choice((1, 2))) for _ in range(rng.choice((1, 2)))]
        name = "_".join(words)
        if 3 <= len(name) <= 14 and split_of("name", name) == split:
            return name


def spelling_word(rng: Random, split: Split) -> tuple[str, bool]:
    """A word of 3 to 12 letters, and whether it is real: one time in three. Others are made of
    syllables or of parts of two real words, and each is on its side of the split; real ones are on
    both, since a tokenizer may have one token for such a word, whose letters can only be learnt."""
    while True:
        kind = rng.random()
        if kind < 1 / 3:
            return rng.choice(COMMON), True
        if kind < 2 / 3:
            word = made_up_word(rng, rng.choice((1, 2, 2, 3, 3, 4)))
        else:
            first, last = rng.choice(COMMON), rng.choice(COMMON)
            word = first[: rng.randint(1, len(first))] + last[rng.randint(0, len(last) - 1) :]
        if 3 <= len(word) <= 12 and word not in COMMON_SET and split_of("word", word) == split:
            return word, False


KEY_CHARACTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
"""Without I, O, 0 and 1, as on labels that people read."""


def key(rng: Random, split: Split) -> str:
    while True:
        text = "".join(rng.choices(KEY_CHARACTERS, k=6))
        if split_of("key", text) == split:
            return text
