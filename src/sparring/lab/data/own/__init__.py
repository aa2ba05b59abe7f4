"""Files of the user's own: tables of text, folders of images, splits, and what to call them in an error."""
