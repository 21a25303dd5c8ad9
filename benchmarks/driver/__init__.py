"""What measures: processes, requests, streams, and the model that every server asks."""
