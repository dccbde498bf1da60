"""The language of drill scripts: from text to the steps of cases."""
