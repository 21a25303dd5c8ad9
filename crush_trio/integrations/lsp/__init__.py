"""Language servers of a workspace, and the tools that use them."""
