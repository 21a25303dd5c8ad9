"""Asks: permissions and questions that wait for a person."""
