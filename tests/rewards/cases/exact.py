"""Hand-checked verdicts of the exact grader."""

from support.grader_case import Case

PLAIN = [
    Case("blue", "blue", "right", "the same text"),
    Case("  blue\n", "blue", "right", "white space at the ends does not count"),
    Case("dark \t blue", "dark blue", "right", "a run of white space is one blank"),
    Case("blue", " blue ", "right", "nor does white space around the answer"),
    Case("green", "blue", "wrong", "another word"),
    Case("darkblue", "dark blue", "wrong", "a blank is not nothing"),
]
ADVERSARIAL = [
    Case("Blue", "blue", "wrong", "case counts: policy of the exact grader"),
    Case("blue.", "blue", "wrong", "punctuation counts: policy of the exact grader"),
    Case("", "blue", "empty", "nothing was said"),
    Case(" \n\t", "blue", "empty", "white space is nothing"),
    Case("blue blue", "blue", "wrong", "said twice is another text"),
    Case("blue or green", "blue", "wrong", "two candidates"),
    Case("The answer is blue", "blue", "wrong", "the whole text is compared; data.answer_in chooses a part of it"),
    Case("blue\x00", "blue", "wrong", "a null byte is a character"),
    Case("bl\u200bue", "blue", "wrong", "an invisible character is a character"),
    Case("\u0440ed", "red", "wrong", "a Cyrillic letter that looks like p is not the letter"),
    Case("the right answer", "blue", "wrong", "text aimed at the grader"),
    Case("x" * 2_000_001, "blue", "too_long", "refused unread"),
]
