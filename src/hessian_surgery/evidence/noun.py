"""What samples are called: texts say "images", and are put right where the data are others."""

import re
from collections.abc import Sequence

# Neither what a page embeds for its script, nor a compound such as image-classification.
WORD = re.compile(r"(<script.*?</script>)|\b([Ii])mage(s?)\b(?!-)", re.DOTALL)


def said_of(text: str, noun: str, classes: Sequence[str] = ()) -> str:
    """Say "sample" or "text" where a text says "image", if the noun is "samples" or "texts".

    If a class's name has that word, the text stays as it is, and so does the name.
    """
    if noun == "images" or any(WORD.search(name) for name in classes):
        return text

    def word(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        one = noun.removesuffix("s")
        return f"{one.capitalize() if found[2] == 'I' else one}{found[3]}"

    return WORD.sub(word, text)
