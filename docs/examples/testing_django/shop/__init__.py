"""A Django application that tells others of its orders."""
