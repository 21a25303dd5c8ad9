"""The offline demo model: answers without a key and without a network."""
