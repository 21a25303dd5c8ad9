"""The built-in tools; the description of each for the model is the file `<tool>.md` beside its module."""
