"""The project's own performance tools; README.md says what each answers and how to run it."""
