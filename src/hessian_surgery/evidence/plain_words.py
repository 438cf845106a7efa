"""What an operation did, for someone who has never heard of σ."""

from hessian_surgery.evidence.before_after import BeforeAfter
from hessian_surgery.evidence.metrics import Metrics
from hessian_surgery.evidence.paired_tests import FEW_IMAGES, PairedTests

NUMBERS = ("no", "one", "two", "three")


def plain_words(images: BeforeAfter, tests: PairedTests) -> str:
    """The weakest class and all images, before and after; which classes changed beyond chance."""
    before, after = images.metrics()
    weak = before.per_class.index(before.worst)
    low = after.per_class.index(after.worst)
    old, new = _right(before, weak), _right(after, weak).partition(" ")[0]
    first = f"Before, the weakest class ({images.classes[weak]}) was right {old}; now {new}."
    if low != weak and after.per_class[low] < after.per_class[weak]:
        first += f" The weakest is now {images.classes[low]}, right {_right(after, low)}."
    overall = f"Overall {100 * before.accuracy:.1f} → {100 * after.accuracy:.1f} %."
    if len(images.labels) < FEW_IMAGES:
        return f"{first} {overall} From so few images nothing can be told."
    if not any(test.claim for test in tests.per_class):
        return f"{first} {overall} No class has {FEW_IMAGES} images, from which a change could be told."
    sure = [test for test in tests.per_class if test.claim and test.p_holm < 0.05]
    gained = sum(test.gained > test.lost for test in sure)
    lost = len(sure) - gained
    if not sure:
        return f"{first} {overall} No class gained or lost beyond chance."
    return f"{first} {overall} {_classes(gained).capitalize()} gained and {_count(lost, 'none')} lost beyond chance."


def _right(metrics: Metrics, number: int) -> str:
    """How often a class is right, in 100; of few images, how many of them."""
    share, count = metrics.per_class[number], metrics.count[number]
    return f"{round(share * count)} of {count} times" if count < FEW_IMAGES else f"{round(100 * share)} times in 100"


def _classes(count: int) -> str:
    return f"{_count(count, 'no')} class{'' if count == 1 else 'es'}"


def _count(count: int, none: str) -> str:
    return none if count == 0 else NUMBERS[count] if count < len(NUMBERS) else f"{count:,}"
