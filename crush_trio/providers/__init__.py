"""Who answers: models behind one small Protocol, each family in a module of its own."""
