"""The other ways to send the same requests."""
