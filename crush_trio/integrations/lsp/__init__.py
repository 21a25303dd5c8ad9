"""Language servers: programs that understand code, asked in the name of a workspace."""
