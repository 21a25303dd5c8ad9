"""What a model may do: one module per tool, its description for the model beside it."""
