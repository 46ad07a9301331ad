"""`python -m tests.vectors` fetches the vocabulary vectors."""

from tests.vectors import FOLDER, fetch

print(f"{fetch()} vocabularies are in {FOLDER}")
