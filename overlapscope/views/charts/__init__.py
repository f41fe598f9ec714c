"""Charts that are yet to be in the rooms of what they show."""
