"""What a case is made of: for queue pairs and for connection managers."""
