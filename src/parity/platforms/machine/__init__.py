"""What this machine says about itself without a device runtime: kernel files, torch's build."""
