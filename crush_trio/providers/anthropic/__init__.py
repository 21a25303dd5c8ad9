"""The provider for Anthropic messages."""
