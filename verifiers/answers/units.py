"""Words that may follow a number without changing it, and words that do change it."""

from __future__ import annotations

import re

_SAME = """
degree degrees deg | meter meters metre metres m | centimeter centimeters centimetre centimetres cm
millimeter millimeters mm | kilometer kilometers kilometre kilometres km | inch inches in | foot feet ft
yard yards yd | mile miles mi | square sq | cubic cu | unit units | second seconds sec secs s
minute minutes min mins | hour hours hr hrs h | day days | week weeks | month months | year years yr yrs
gram grams g | kilogram kilograms kg | pound pounds lb lbs | ounce ounces oz | ton tons
liter liters litre litres l | milliliter milliliters ml | gallon gallons gal | quart quarts | pint pints | cup cups
dollar dollars usd | cent cents | euro euros | radian radians rad | newton newtons | joule joules | watt watts
volt volts | kelvin | celsius c | fahrenheit f | hertz hz | mph | kmh kph | percent pct
person people | child children | man men | woman women | way ways | point points | time times | per
"""
CANONICAL_UNIT: dict[str, str] = {
    word: group.split()[0] for group in _SAME.replace("\n", " | ").split("|") for word in group.split()
}
"""Unit word, lower case -> the one name it shares with its synonyms."""

_POWERS = {"square": 2, "cubic": 3}
_CHANGING = """
is not are was or and nor but about approximately roughly around almost nearly mod modulo minus plus less more
half halves third thirds quarter quarters fifths tenths hundredths thousandths hundred hundreds thousand thousands
million millions billion billions trillion trillions dozen dozens pair pairs score tens squares cubes roots inverse
base others perhaps maybe thus
"""
CHANGES_THE_NUMBER = frozenset(_CHANGING.split())
"""Never a unit: the phrase hedges, negates or scales."""


def canonical_unit(phrase: str) -> str | None:
    """One spelling of a unit phrase, or None when it is not one.

    Besides the known units, up to two plain words of which the last is a plural are taken as what was counted.

    >>> canonical_unit("sq. cm"), canonical_unit("red apples"), canonical_unit("million"), canonical_unit("is wrong")
    ('centimeter^2', 'apples', None, None)
    """
    words = phrase.lower().replace(".", " ").replace("-", " ").split()
    if not words or any(word in CHANGES_THE_NUMBER for word in words):
        return None
    if all(word in CANONICAL_UNIT for word in words):
        unit = " ".join(CANONICAL_UNIT[word] for word in words)
        return re.sub(r"^(square|cubic) (\w+)$", lambda match: f"{match[2]}^{_POWERS[match[1]]}", unit)
    if len(words) <= 2 and all(word.isalpha() for word in words) and words[-1].endswith("s") and len(words[-1]) > 3:
        return words[-1]
    return None
