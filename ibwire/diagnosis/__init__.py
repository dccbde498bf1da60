"""What went wrong in a connection: incidents with cause and effect, and their description.

A `Recorder` observes an analysis and keeps a `Record` of each chosen connection; `Story`
describes one as lines of text. The names below are public.
"""

from ibwire.diagnosis.one_line import summary
from ibwire.diagnosis.record import Record, Recorder
from ibwire.diagnosis.story import Frames, Line, Story

__all__ = ["Frames", "Line", "Record", "Recorder", "Story", "summary"]
