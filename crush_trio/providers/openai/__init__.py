"""The provider for OpenAI chat completions."""
