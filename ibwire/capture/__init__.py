"""Files of packets: pcap and pcapng, compressed or not, read as a stream.

Times are integer nanoseconds since the epoch, whatever the file holds. Reading
costs a few chunks of memory however long the file is.
"""

from ibwire.capture.index import PADDING, Record, RecordBatch
from ibwire.capture.pcap import PcapWriter
from ibwire.capture.pcapng import PcapngWriter
from ibwire.capture.reader import CaptureReader, open_capture
from ibwire.capture.tap import Tap
from ibwire.capture.writer import CaptureWriter, write_capture

__all__ = [
    "PADDING",
    "CaptureReader",
    "CaptureWriter",
    "PcapWriter",
    "PcapngWriter",
    "Record",
    "RecordBatch",
    "Tap",
    "open_capture",
    "write_capture",
]
