"""Providers: stream the answers of models, each wire format in a folder of its own.

`base` has the Protocol, `call` makes one model call with time limits and retries, `registry` chooses the
provider for a type, `catalog` has the models with their limits and prices, `errors` the errors of all
providers, `http` what those behind HTTP share.
"""
