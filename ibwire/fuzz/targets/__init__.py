"""What is attacked: an emulator in this process, or a device on a link."""
