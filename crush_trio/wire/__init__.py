"""Wire values and their JSON.

Values are frozen attrs classes and import only each other. `codec` is the only module that turns
them into bytes and back, with the readers and writers of `converters`; `schema` makes JSON Schemas
of the same classes. Import from the modules, so that a program loads only the values it uses.
"""
