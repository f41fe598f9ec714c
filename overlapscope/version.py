"""Which version this is: the one place, which the package's metadata is made from."""

__version__ = "0.2.0"
