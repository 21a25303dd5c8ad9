"""File tools: view, edit, multiedit, write."""
