"""What crosses the wire: frozen values, and one codec that knows how each is spelt.

Values say what something *is* and import nothing but each other; `codec` turns them into JSON and
back and is the only module that knows about bytes. Import from the modules: loading a stream must
not pay for the configuration tree.
"""
