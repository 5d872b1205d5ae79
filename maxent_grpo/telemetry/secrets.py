"""Finding what must not be written down: keys, tokens and passwords in texts that are kept with a run.

What looks like one is left out, so that now and then something harmless is left out as well; a secret of a form that nobody
knows can still pass. Values of environment variables whose names speak of a secret are known, whatever their form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
SHORTEST = 8
"""Values of environment variables below this length are no secrets worth the name [characters]."""
_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_NAMED = r"(?:api_?key|secret|password|passwd|(?:access|auth|hub|hf|bearer)_?token)"
FORMS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\b(?:hf|sk|gh[pousr]|github_pat|glpat|xox[abeprs])[_-][\w-]{12,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}"
)
"""Keys and tokens that are known by how they look."""
IN_URL = re.compile(r"(?<=://)[^/\s@'\"]+@")
"""Credentials in an address, with the sign that ends them."""
_ASSIGNED = re.compile(rf"(?i)({_NAMED}\w*['\"]?\s*[:=]\s*)(['\"])([^'\"]{{{SHORTEST},}})\2")
_ARGUMENT = re.compile(rf"(?i)^([^=]*{_NAMED}\w*=)(.+)$")


def known_secrets(environment: Mapping[str, str] | None = None) -> list[str]:
    """Values of the environment variables that hold secrets by their name, the longest first."""
    variables = os.environ if environment is None else environment
    found = {value for name, value in variables.items() if _VARIABLE.search(name) and len(value) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def looks_secret(text: str, known: Iterable[str]) -> bool:
    """Whether a text holds a known secret or something of the form of one, credentials in a URL included."""
    return (
        any(value in text for value in known)
        or FORMS.search(text) is not None
        or IN_URL.search(text) is not None
        or _ASSIGNED.search(text) is not None
    )


def without_secrets(argument: str, known: Iterable[str]) -> str:
    """A word of a command line with ``***`` for every secret in it."""
    for value in known:
        argument = argument.replace(value, HIDDEN)
    argument = IN_URL.sub(f"{HIDDEN}@", FORMS.sub(HIDDEN, argument))
    argument = _ASSIGNED.sub(rf"\g<1>\g<2>{HIDDEN}\g<2>", argument)
    return _ARGUMENT.sub(rf"\g<1>{HIDDEN}", argument)
