"""Learned against fixed dropout: images, segmentation, useless inputs."""

from . import images, segmentation, useless

TASKS = (images.TASK, useless.TASK, segmentation.TASK)
