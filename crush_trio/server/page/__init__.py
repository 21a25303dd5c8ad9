"""What a browser needs beyond the API: the files of the page, logging in, and rendered messages."""
