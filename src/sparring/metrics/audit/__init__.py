"""The audit: is a model robust, or does it only hide its gradients?"""
