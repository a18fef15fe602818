"""The programs and modules of the Object Detection API that its tutorials use, over stillbox."""
