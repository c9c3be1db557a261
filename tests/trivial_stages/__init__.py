"""Stages for the tests of cohyde.dag: they take no time and need nothing."""
