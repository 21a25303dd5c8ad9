"""Commands about the stored data of a directory: `backup`, `restore` and `prune`."""
