"""Copies of stored data: backups, and workspaces copied from one store into another."""
