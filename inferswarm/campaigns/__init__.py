"""What was tried: campaigns of papermill arms, records that fail closed, and their verification by strangers.

Reading and verifying need the base install only; running an arm needs the `lab` extra.
"""
