"""What a drill script can test: the emulator, a device on a link, a recording."""
