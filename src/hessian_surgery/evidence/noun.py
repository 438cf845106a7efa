"""What samples are called: texts say "images", and are put right where the data are others."""

import re
from collections.abc import Sequence

# Neither what a page embeds for its script, nor a compound such as image-classification.
WORD = re.compile(r"(<script.*?</script>)|\b([Ii])mage(s?)\b(?!-)", re.DOTALL)


def said_of(text: str, noun: str, classes: Sequence[str] = ()) -> str:
    """Say "sample" where a text says "image", if the noun is "samples".

    If a class's name has that word, the text stays as it is, and so does the name.
    """
    if noun == "images" or any(WORD.search(name) for name in classes):
        return text

    def word(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        return f"{'S' if found[2] == 'I' else 's'}ample{found[3]}"

    return WORD.sub(word, text)
