"""Commands about stored data: `backup`, `restore`, `store copy` and `prune`."""
