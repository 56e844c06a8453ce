"""Measuring candidates in isolated workers."""
