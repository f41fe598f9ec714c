"""Digests of the outputs of every command about the bundled recordings (`digests.txt`): `python -m tests.outputs`."""
