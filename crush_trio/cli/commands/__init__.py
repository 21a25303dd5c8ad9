"""The commands: one module each, with the click function first and its helpers below."""
